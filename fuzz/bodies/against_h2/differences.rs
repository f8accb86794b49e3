//! Where the two servers may differ, each with the section of RFC 9113 that allows it, or that `h2` departs from.

use Outcome::{Goes, Gone, Reset, TooLarge};

use super::frames::{
    ACK, CONTINUATION, DATA, END_HEADERS, Frame, GOAWAY, HEADERS, NO_FRAME, PING, PRIORITY, PUSH_PROMISE,
    RST_STREAM, SETTINGS, WINDOW_UPDATE,
};
use super::servers::{Head, Seen, Stream};

const PROTOCOL_ERROR: u32 = 1;
const FLOW_CONTROL_ERROR: u32 = 3;
const STREAM_CLOSED: u32 = 5;
const FRAME_SIZE_ERROR: u32 = 6;
pub(super) const REFUSED_STREAM: u32 = 7;
const COMPRESSION_ERROR: u32 = 9;

const MAX_PAYLOAD: usize = 16 << 10;
/// A setting that only `h2` knows (RFC 8441, section 3).
const ENABLE_CONNECT_PROTOCOL: [u8; 2] = [0, 8];

/// Result of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The stream and the connection go on, or the stream ended as it should.
    Goes,
    /// The stream was broken off, with this code.
    Reset(u32),
    /// The head was answered as one that is too large.
    TooLarge,
    /// The connection was broken off, with this code if one was told.
    Gone(Option<u32>),
}

impl Outcome {
    pub(super) fn of(seen: &Seen, before: &Stream, now: &Stream) -> Self {
        if seen.over || seen.go_away.is_some() {
            return Gone(seen.go_away.map(|(_, code)| code));
        }
        match now.reset {
            // Nobody else answers what the application was not given.
            _ if now.head.is_none() && now.blocks > before.blocks => TooLarge,
            Some(code) if before.reset.is_none() => Reset(code),
            _ => Goes,
        }
    }
}

/// A frame and what came of it.
#[derive(Debug)]
pub(super) struct Case<'a> {
    pub(super) frame: &'a Frame,
    pub(super) ours: Outcome,
    pub(super) theirs: Outcome,
    /// The stream before the frame, as this server showed it,
    pub(super) before: &'a Stream,
    /// after it,
    pub(super) now: &'a Stream,
    /// and as the other one shows it.
    pub(super) theirs_now: &'a Stream,
    /// Whether the stream, or one with a higher number, was opened before.
    pub(super) was_used: bool,
    /// The newest stream that was.
    pub(super) newest: u32,
    /// Whether a block of headers was not whole.
    pub(super) in_block: bool,
    /// Whether it is not the first frame.
    pub(super) began: bool,
    /// Whether it is more data than this server has opened windows for.
    pub(super) exceeds_window: bool,
}

impl Case<'_> {
    /// Whether the frame ends a block of headers.
    fn ends_block(&self) -> bool {
        matches!(self.frame.kind, HEADERS | CONTINUATION) && self.frame.has(END_HEADERS)
    }

    fn is(&self, ours: Outcome, theirs: Outcome) -> bool {
        (self.ours, self.theirs) == (ours, theirs)
    }

    fn is_of(&self, kinds: &[u8]) -> bool {
        kinds.contains(&self.frame.kind)
    }

    fn theirs_has(&self, is: impl Fn(&Head) -> bool) -> bool {
        self.theirs_now.head.as_ref().is_some_and(is)
    }

    fn has_odd_authority(&self) -> bool {
        self.now.head.as_ref().is_some_and(Head::has_odd_authority)
    }

    /// Whether this server refused the block that ends here, or may take it though `h2` does not.
    pub(super) fn is_fault_of_block(&self) -> bool {
        self.ours != Goes || self.before.reset.is_some() || self.has_odd_authority()
    }

    /// Whether the frame has a size that it cannot have (sections 4.2 and 6).
    fn is_of_wrong_size(&self) -> bool {
        let len = self.frame.payload.len();
        len > MAX_PAYLOAD
            || match self.frame.kind {
                DATA | HEADERS => self.frame.lacks_fields(),
                PRIORITY => len != 5,
                RST_STREAM | WINDOW_UPDATE => len != 4,
                SETTINGS if self.frame.has(ACK) => len != 0,
                SETTINGS => !len.is_multiple_of(6),
                PING => len != 8,
                GOAWAY => len < 8,
                _ => false,
            }
    }
}

/// A choice that the protocol leaves, or a departure from it.
#[derive(Debug)]
pub(super) struct Difference {
    fits: fn(&Case<'_>) -> bool,
    /// The other server has found a fault that this one will find when the block is whole.
    early: bool,
}

impl Difference {
    pub(super) const fn is_early(&self) -> bool {
        self.early
    }
}

pub(super) fn find(case: &Case<'_>) -> Option<&'static Difference> {
    DIFFERENCES.iter().find(|difference| (difference.fits)(case))
}

const fn of(fits: fn(&Case<'_>) -> bool) -> Difference {
    Difference { fits, early: false }
}

static DIFFERENCES: &[Difference] = &[
    // === Choices ===

    // 4.3: A block is decoded when it is whole. h2 begins before.
    Difference {
        fits: |case| {
            case.is_of(&[HEADERS, CONTINUATION]) && !case.frame.has(END_HEADERS) && case.ours == Goes
        },
        early: true,
    },
    // 3.4: What is no HTTP/2 may be left without a word.
    of(|case| !case.began && case.is(Gone(Some(PROTOCOL_ERROR)), Gone(None))),
    // 4.2: A frame may be refused once its length is known. This server waits for the rest of its head.
    of(|case| case.is_of(&[NO_FRAME]) && case.is(Goes, Gone(Some(FRAME_SIZE_ERROR)))),
    // 7: Of several faults any may be told.
    of(|case| {
        let both = matches!((case.ours, case.theirs), (Gone(Some(_)), Gone(_)));
        both && (case.is_of(&[NO_FRAME])
            || case.is_of_wrong_size() && case.theirs == Gone(Some(FRAME_SIZE_ERROR)))
    }),
    of(|case| case.ends_block() && case.ours == Reset(REFUSED_STREAM) && case.theirs != Goes),
    // 10.5.1: A head that is too large may be answered, also one that is malformed.
    of(|case| {
        let errors = [Reset(PROTOCOL_ERROR), Gone(Some(PROTOCOL_ERROR))];
        case.ends_block()
            && (case.ours == TooLarge && errors.contains(&case.theirs)
                || case.theirs == TooLarge && errors.contains(&case.ours))
    }),
    // 8.3.1: The authority may be any text. gRPC clients on Unix sockets say the path of the socket, and here it means
    // nothing.
    of(|case| {
        case.ends_block()
            && case.has_odd_authority()
            && matches!(case.theirs, Reset(PROTOCOL_ERROR) | Gone(Some(PROTOCOL_ERROR)))
    }),
    // 6.9.1: Too much data is an error of the stream or of the connection, and each server opens windows when it likes.
    of(|case| {
        let is_told = |outcome| matches!(outcome, Gone(Some(FLOW_CONTROL_ERROR)) | Reset(FLOW_CONTROL_ERROR));
        case.is_of(&[DATA])
            && case.exceeds_window == is_told(case.ours)
            && (case.exceeds_window || is_told(case.theirs))
    }),
    // 5.4.1: An error of an idle stream, which cannot be broken off, is one of the connection. h2 breaks the stream off.
    of(|case| {
        case.is_of(&[PRIORITY])
            && !case.was_used
            && case.is(Gone(Some(PROTOCOL_ERROR)), Reset(PROTOCOL_ERROR))
    }),
    // 5.3.2: Priorities of streams that are over mean nothing. h2 looks at them.
    of(|case| case.is_of(&[PRIORITY]) && case.was_used && case.is(Goes, Reset(PROTOCOL_ERROR))),
    // 6.5.2: Settings that are not known mean nothing. h2 knows one more.
    of(|case| {
        let knows = |setting: &[u8; 6]| setting[..2] == ENABLE_CONNECT_PROTOCOL;
        case.is_of(&[SETTINGS])
            && case.frame.payload.as_chunks().0.iter().any(knows)
            && case.is(Goes, Gone(Some(PROTOCOL_ERROR)))
    }),
    // 6.5.3: An acknowledgement that nobody waits for is no fault. For h2 it is.
    of(|case| case.is_of(&[SETTINGS]) && case.frame.has(ACK) && case.is(Goes, Gone(Some(PROTOCOL_ERROR)))),
    // 6.9: A window that is opened by nothing is an error of its stream, and of none if that is over. For h2 it is one of
    // the connection.
    of(|case| {
        case.is_of(&[WINDOW_UPDATE])
            && case.frame.number() == 0
            && case.theirs == Gone(Some(PROTOCOL_ERROR))
            && (case.ours == Reset(PROTOCOL_ERROR) || case.ours == Goes && case.was_used)
    }),
    // === Where h2 departs from the protocol, and this server does not ===

    // 3.4: The first frame is SETTINGS, and no acknowledgement. h2 takes others.
    of(|case| {
        !case.began
            && (!case.is_of(&[SETTINGS]) || case.frame.has(ACK))
            && case.ours == Gone(Some(PROTOCOL_ERROR))
    }),
    // 4.2: FRAME_SIZE_ERROR. With h2 PROTOCOL_ERROR.
    of(|case| case.is_of_wrong_size() && case.is(Gone(Some(FRAME_SIZE_ERROR)), Gone(Some(PROTOCOL_ERROR)))),
    // 4.3: COMPRESSION_ERROR. With h2 PROTOCOL_ERROR.
    of(|case| case.ends_block() && case.is(Gone(Some(COMPRESSION_ERROR)), Gone(Some(PROTOCOL_ERROR)))),
    // 4.3: Each block is decoded. h2 passes over that of a stream that depends on itself.
    of(|case| {
        case.is_of(&[HEADERS])
            && case.frame.dependency() == Some(case.frame.stream())
            && case.ours == Gone(Some(COMPRESSION_ERROR))
    }),
    // RFC 7541, 4.2: Sizes of the table are at the beginning of a block. h2 takes them at the beginning of each frame.
    of(|case| case.is_of(&[CONTINUATION]) && case.ours == Gone(Some(COMPRESSION_ERROR))),
    // 5.1: What comes on a closed stream is STREAM_CLOSED. With h2 PROTOCOL_ERROR, or nothing at all.
    of(|case| {
        let closed = [Reset(STREAM_CLOSED), Gone(Some(STREAM_CLOSED))];
        case.was_used && case.is_of(&[DATA, HEADERS, CONTINUATION]) && closed.contains(&case.ours)
    }),
    // 5.1.1: A new stream has an odd number, above all before. h2 looks at what is in its head first.
    of(|case| {
        let id = case.frame.stream();
        case.ends_block()
            && (id.is_multiple_of(2) || id < case.newest)
            && case.ours == Gone(Some(PROTOCOL_ERROR))
    }),
    // 6.5.2: FLOW_CONTROL_ERROR for a window beyond the largest. With h2 PROTOCOL_ERROR.
    of(|case| case.is_of(&[SETTINGS]) && case.is(Gone(Some(FLOW_CONTROL_ERROR)), Gone(Some(PROTOCOL_ERROR)))),
    // 6.10: Nothing comes between the frames of a block. h2 forgets that a malformed one is not whole.
    of(|case| case.in_block && !case.is_of(&[CONTINUATION]) && case.ours == Gone(Some(PROTOCOL_ERROR))),
    // 8.1: Trailers have no pseudo-headers. h2 takes them.
    of(|case| case.ends_block() && case.before.head.is_some() && case.is(Reset(PROTOCOL_ERROR), Goes)),
    // 8.1.1: What is malformed is an error of its stream. With h2 names that cannot be are one of the connection, also on
    // streams that are over.
    of(|case| {
        case.ends_block()
            && case.theirs == Gone(Some(PROTOCOL_ERROR))
            && (case.ours == Reset(PROTOCOL_ERROR) || case.ours == Goes && case.before.reset.is_some())
    }),
    // 8.1.1: And it stays malformed. h2 forgets that with each frame of the block.
    of(|case| case.is_of(&[CONTINUATION]) && case.ours == Reset(PROTOCOL_ERROR)),
    // RFC 9110, 8.6: A length has a digit. For h2 none are zero.
    of(|case| {
        let nothing = ("content-length".to_owned(), Vec::new());
        case.ends_block()
            && case.ours == Reset(PROTOCOL_ERROR)
            && case.theirs_has(|head| head.fields.contains(&nothing))
    }),
    // 8.3.1: There is a path. h2 does without.
    of(|case| {
        case.ends_block()
            && case.ours == Reset(PROTOCOL_ERROR)
            && case.theirs_has(|head| head.path.starts_with('?'))
    }),
    // 8.4: A client cannot push. h2 waits for the rest of the block.
    of(|case| case.is_of(&[PUSH_PROMISE]) && case.ours == Gone(Some(PROTOCOL_ERROR))),
];
