//! Rule by rule: what a client sends, and what becomes of it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use http::{HeaderMap, StatusCode};
use proptest::prelude::*;

use super::super::connection::Connection;
use super::super::frame::{HEAD, Head, Kind, MAX_WINDOW, flag};
use super::super::stream::StreamHandler;
use super::super::{ConnectionError, Limits, PREFACE, Reason, hpack};
use super::{block, frame, setting};

fn limits() -> Limits {
    Limits { max_streams: 3, stream_window: 1000, max_head_bytes: 4000, ..super::limits() }
}

/// Data and end that arrived on a stream.
#[derive(Debug, Default)]
struct RecordedStream {
    path: String,
    data: Vec<u8>,
    ended: bool,
}

impl StreamHandler for RecordedStream {
    fn data(&mut self, payload: &[u8]) {
        self.data.extend_from_slice(payload);
    }

    fn end(&mut self) {
        self.ended = true;
    }
}

struct Case {
    connection: Connection<RecordedStream>,
    now: Instant,
}

impl Case {
    fn silent() -> Self {
        let now = Instant::now();
        Self { connection: Connection::new(Arc::new(limits()), now), now }
    }

    /// A client that has introduced itself.
    fn open() -> Self {
        let mut case = Self::silent();
        case.receive(&[&PREFACE[..], &frame(Kind::Settings, 0, 0, &[])].concat()).expect("a good start");
        case.said();
        case
    }

    fn receive(&mut self, bytes: &[u8]) -> Result<(), ConnectionError> {
        self.connection.receive(bytes, self.now, &mut |_, parts| RecordedStream {
            path: parts.uri.path().to_owned(),
            ..RecordedStream::default()
        })
    }

    /// Frames sent since the last call: type, flags, stream, payload.
    fn said(&mut self) -> Vec<(Kind, u8, u32, Vec<u8>)> {
        frames(&std::mem::take(&mut self.connection.control))
    }

    fn stream(&self, id: u32) -> &RecordedStream {
        &self.connection.streams[self.connection.find(id).expect("the stream is open")].handler
    }

    fn at(&self, id: u32) -> usize {
        self.connection.find(id).expect("the stream is open")
    }
}

fn frames(mut bytes: &[u8]) -> Vec<(Kind, u8, u32, Vec<u8>)> {
    let mut frames = Vec::new();
    while let Some((head, rest)) = bytes.split_first_chunk::<HEAD>() {
        let head = Head::parse(*head);
        frames.push((head.kind, head.flags, head.stream, rest[..head.len].to_vec()));
        bytes = &rest[head.len..];
    }
    frames
}

const WHOLE: u8 = flag::END_HEADERS;

fn request(stream: u32) -> Vec<u8> {
    frame(Kind::Headers, WHOLE, stream, &block(&[]))
}

fn reset(stream: u32, reason: Reason) -> (Kind, u8, u32, Vec<u8>) {
    (Kind::RstStream, 0, stream, (reason as u32).to_be_bytes().to_vec())
}

#[test]
fn a_request_arrives() {
    let mut case = Case::open();
    case.receive(&request(1)).expect("a good request");
    case.receive(&frame(Kind::Data, 0, 1, b"he")).expect("data");
    // Padded by three bytes.
    case.receive(&frame(Kind::Data, flag::PADDED | flag::END_STREAM, 1, b"\x03llo\0\0\0")).expect("data");
    let heard = case.stream(1);
    assert_eq!((&heard.path[..], &heard.data[..], heard.ended), ("/a", &b"hello"[..], true));
    assert_eq!(case.connection.scheduled, [1, 1, 1]);
}

#[test]
fn a_block_may_come_in_pieces_and_nothing_in_between() {
    let block = block(&[("a", "b")]);
    let (first, rest) = block.split_at(5);
    let mut case = Case::open();
    case.receive(&frame(Kind::Headers, 0, 1, first)).expect("a start");
    case.receive(&frame(Kind::Continuation, 0, 1, &rest[..1])).expect("more");
    case.receive(&frame(Kind::Continuation, WHOLE, 1, &rest[1..])).expect("the rest");
    assert_eq!(case.stream(1).path, "/a");

    for between in [frame(Kind::Ping, 0, 0, &[0; 8]), frame(Kind::Continuation, WHOLE, 5, rest), request(5)] {
        let mut case = Case::open();
        case.receive(&frame(Kind::Headers, 0, 3, first)).expect("a start");
        assert_eq!(case.receive(&between).expect_err("not now").reason, Reason::Protocol);
    }
}

#[test]
fn errors_that_end_the_connection() {
    let closed_normally = || {
        let mut case = Case::open();
        case.receive(&frame(Kind::Headers, WHOLE | flag::END_STREAM, 1, &block(&[])))
            .expect("a good request");
        let at = case.at(1);
        case.connection.respond(at, StatusCode::OK, &HeaderMap::new(), true);
        case
    };
    let too_long_an_update = frame(Kind::WindowUpdate, 0, 0, &MAX_WINDOW.to_be_bytes());
    let faults: Vec<(Vec<u8>, Reason, &str)> = vec![
        (frame(Kind::Data, 0, 0, b"x"), Reason::Protocol, "data on the connection"),
        (frame(Kind::Headers, WHOLE, 0, &block(&[])), Reason::Protocol, "headers on the connection"),
        (request(2), Reason::Protocol, "an even stream"),
        (frame(Kind::Data, 0, 3, b"x"), Reason::Protocol, "data on a stream that was not opened"),
        (frame(Kind::RstStream, 0, 3, &[0; 4]), Reason::Protocol, "a reset of a stream that was not opened"),
        (
            frame(Kind::WindowUpdate, 0, 3, &[0, 0, 0, 1]),
            Reason::Protocol,
            "a window of a stream that was not opened",
        ),
        (frame(Kind::RstStream, 0, 1, &[0; 3]), Reason::FrameSize, "a short reset"),
        (frame(Kind::Priority, 0, 1, &[0; 4]), Reason::FrameSize, "a short priority"),
        (frame(Kind::Ping, 0, 0, &[0; 7]), Reason::FrameSize, "a short ping"),
        (frame(Kind::Ping, 0, 1, &[0; 8]), Reason::Protocol, "a ping on a stream"),
        (frame(Kind::Settings, 0, 0, &[0; 5]), Reason::FrameSize, "half a setting"),
        (frame(Kind::Settings, flag::ACK, 0, &[0; 6]), Reason::FrameSize, "an answer with settings"),
        (frame(Kind::Settings, 0, 1, &[]), Reason::Protocol, "settings on a stream"),
        (setting(2, 2), Reason::Protocol, "neither push nor not"),
        (setting(4, MAX_WINDOW + 1), Reason::FlowControl, "an initial window beyond the largest"),
        (setting(5, 100), Reason::Protocol, "frames smaller than allowed"),
        (setting(5, 1 << 24), Reason::Protocol, "frames larger than allowed"),
        (frame(Kind::WindowUpdate, 0, 0, &[0; 4]), Reason::Protocol, "a window update of nothing"),
        (frame(Kind::WindowUpdate, 0, 0, &[0; 3]), Reason::FrameSize, "a short window update"),
        (
            [&too_long_an_update[..], &too_long_an_update].concat(),
            Reason::FlowControl,
            "a window beyond the largest",
        ),
        (frame(Kind::PushPromise, WHOLE, 1, &[0; 4]), Reason::Protocol, "a push"),
        (frame(Kind::Continuation, WHOLE, 1, &[]), Reason::Protocol, "a continuation of nothing"),
        (
            frame(Kind::Headers, WHOLE | flag::PADDED, 1, &[9, 0]),
            Reason::Protocol,
            "more padding than payload",
        ),
        (frame(Kind::Headers, WHOLE, 1, &[0x80]), Reason::Compression, "a block that cannot be decoded"),
        (frame(Kind::Data, 0, 1, &[0; (16 << 10) + 1]), Reason::FrameSize, "a frame that is too large"),
        (frame(Kind::GoAway, 0, 0, &[0; 7]), Reason::FrameSize, "a short farewell"),
    ];
    for (bytes, reason, what) in faults {
        assert_eq!(Case::open().receive(&bytes).map_err(|error| error.reason), Err(reason), "{what}");
    }
    let over = closed_normally().receive(&request(1));
    assert_eq!(over.map_err(|error| error.reason), Err(Reason::StreamClosed));
    let mut lower = Case::open();
    lower.receive(&request(5)).expect("a good request");
    assert_eq!(lower.receive(&request(3)).map_err(|error| error.reason), Err(Reason::Protocol));
    let mut even = Case::open();
    even.receive(&request(5)).expect("a good request");
    let reset = even.receive(&frame(Kind::RstStream, 0, 2, &[0; 4]));
    assert_eq!(reset.map_err(|error| error.reason), Err(Reason::Protocol), "a stream that nobody opens");

    for start in [&b"GET / HTTP/1.1\r\n\r\n"[..], b"PRI * HTTP/2.0\r\n\r\nSN\r\n\r\n"] {
        assert_eq!(Case::silent().receive(start).map_err(|error| error.reason), Err(Reason::Protocol));
    }
    let no_settings = [&PREFACE[..], &frame(Kind::Ping, 0, 0, &[0; 8])].concat();
    assert_eq!(Case::silent().receive(&no_settings).map_err(|error| error.reason), Err(Reason::Protocol));
}

#[test]
fn errors_that_reset_a_stream_only() {
    let length = frame(Kind::Headers, WHOLE, 1, &block(&[("content-length", "3")]));
    let on_itself = [&[0, 0, 0, 1, 16][..], &block(&[])].concat();
    let faults: Vec<(Vec<u8>, Reason, &str)> = vec![
        (
            frame(Kind::Headers, WHOLE, 1, &block(&[("connection", "close")])),
            Reason::Protocol,
            "a malformed head",
        ),
        (
            frame(Kind::Headers, WHOLE | flag::PRIORITY, 1, &on_itself),
            Reason::Protocol,
            "it depends on itself",
        ),
        (
            [
                frame(Kind::Headers, flag::PRIORITY, 1, &on_itself),
                frame(Kind::Continuation, flag::END_HEADERS, 1, &[]),
            ]
            .concat(),
            Reason::Protocol,
            "the same in two frames",
        ),
        (
            [&request(1)[..], &frame(Kind::Priority, 0, 1, &[0, 0, 0, 1, 0])].concat(),
            Reason::Protocol,
            "the same later",
        ),
        (
            [&request(1)[..], &frame(Kind::WindowUpdate, 0, 1, &[0; 4])].concat(),
            Reason::Protocol,
            "an update of nothing",
        ),
        (
            [&request(1)[..], &frame(Kind::WindowUpdate, 0, 1, &MAX_WINDOW.to_be_bytes())].concat(),
            Reason::FlowControl,
            "a window beyond the largest",
        ),
        ([&request(1)[..], &request(1)].concat(), Reason::Protocol, "trailers that do not end"),
        (
            [&request(1)[..], &frame(Kind::Headers, WHOLE | flag::END_STREAM, 1, &block(&[]))].concat(),
            Reason::Protocol,
            "trailers with pseudo-headers",
        ),
        ([&length[..], &frame(Kind::Data, 0, 1, b"four")].concat(), Reason::Protocol, "more than was said"),
        (
            [&length[..], &frame(Kind::Data, flag::END_STREAM, 1, b"2b")].concat(),
            Reason::Protocol,
            "less than was said",
        ),
        (
            [
                &frame(Kind::Headers, WHOLE | flag::END_STREAM, 1, &block(&[]))[..],
                &frame(Kind::Data, 0, 1, b"x"),
            ]
            .concat(),
            Reason::StreamClosed,
            "data behind the end",
        ),
    ];
    for (bytes, reason, what) in faults {
        let mut case = Case::open();
        assert_eq!(case.receive(&bytes), Ok(()), "{what}");
        assert_eq!(case.said(), [reset(1, reason)], "{what}");
        assert_eq!(case.connection.find(1), None, "{what}");
        case.receive(&request(3)).expect("the connection lives");
    }
}

#[test]
fn frames_sent_before_the_peer_knew_of_a_reset_are_ignored() {
    let mut case = Case::open();
    case.receive(&request(1)).expect("a good request");
    let at = case.at(1);
    case.connection.reset(at, Reason::Cancel);
    assert_eq!(case.said(), [reset(1, Reason::Cancel)]);
    case.receive(&frame(Kind::Data, 0, 1, b"late")).expect("it could not know");
    case.receive(&frame(Kind::Headers, WHOLE | flag::END_STREAM, 1, &[])).expect("it could not know");
    assert_eq!(case.said(), []);
}

#[test]
fn a_head_that_is_too_large_is_answered_and_later_ones_are_understood() {
    let mut case = Case::open();
    let large = "x".repeat(5000);
    case.receive(&frame(Kind::Headers, WHOLE | flag::END_STREAM, 1, &block(&[("a", &large)])))
        .expect("only a request");
    let said = case.said();
    let [(Kind::Headers, flags, 1, block)] = &said[..] else { panic!("{said:?}") };
    assert_eq!(*flags, WHOLE | flag::END_STREAM);
    let mut fields = Vec::new();
    hpack::Decoder::default()
        .decode(block, |name, value| fields.push((name.to_vec(), value.to_vec())))
        .expect("ours");
    assert_eq!(fields, [(b":status".to_vec(), b"431".to_vec())]);
    case.receive(&request(3)).expect("the connection lives");
}

#[test]
fn streams_are_limited() {
    let mut case = Case::open();
    for id in [1, 3, 5, 7] {
        case.receive(&request(id)).expect("a good request");
    }
    assert_eq!(case.said(), [reset(7, Reason::RefusedStream)]);
    case.receive(&frame(Kind::RstStream, 0, 3, &[0; 4])).expect("a cancelled request");
    case.receive(&request(9)).expect("a good request");
    assert_eq!(case.said(), []);
    assert_eq!(case.connection.streams.iter().map(|stream| stream.id).collect::<Vec<_>>(), [1, 5, 9]);
}

#[test]
fn windows_hold_the_peer_back_until_its_bytes_were_read() {
    let mut case = Case::open();
    case.receive(&request(1)).expect("a good request");
    case.receive(&frame(Kind::Data, 0, 1, &[0; 1000])).expect("all that the window allows");
    let at = case.at(1);
    case.connection.give_back(at, 600);
    assert_eq!(case.said(), [(Kind::WindowUpdate, 0, 1, 600_u32.to_be_bytes().to_vec())]);
    case.receive(&frame(Kind::Data, 0, 1, &[0; 600])).expect("what was given back");
    let over = case.receive(&frame(Kind::Data, 0, 1, &[0; 1]));
    assert_eq!(over.map_err(|error| error.reason), Err(Reason::FlowControl));
}

#[test]
fn the_connections_window_outlives_its_streams() {
    // Data of closed streams, which nobody reads, must not close the window for all others.
    let mut case = Case::open();
    for id in (1..1001).step_by(2) {
        case.receive(&request(id)).expect("a good request");
        case.receive(&frame(Kind::Data, 0, id, &[0; 1000]))
            .unwrap_or_else(|error| panic!("stream {id}: {error}"));
        match id % 3 {
            0 => case.receive(&frame(Kind::RstStream, 0, id, &[0; 4])).expect("a cancelled request"),
            1 => {
                let at = case.at(id);
                case.connection.respond(at, StatusCode::OK, &HeaderMap::new(), true);
            }
            _ => {
                let at = case.at(id);
                case.connection.reset(at, Reason::Internal);
                case.receive(&frame(Kind::Data, 0, id, &[0; 100])).expect("it could not know");
            }
        }
        case.said();
    }
}

#[test]
fn our_windows_follow_updates_and_settings() {
    let mut case = Case::open();
    case.receive(&setting(4, 10)).expect("a small window");
    case.receive(&request(1)).expect("a good request");
    let at = case.at(1);
    assert_eq!(case.connection.room(at), 10);
    case.connection.data(at, 8);
    case.receive(&setting(4, 3)).expect("a smaller window");
    assert_eq!(case.connection.room(at), 0, "it is negative");
    case.connection.block(at, case.now);
    case.connection.scheduled.clear();
    case.receive(&frame(Kind::WindowUpdate, 0, 1, &[0, 0, 0, 9])).expect("an update");
    assert_eq!(case.connection.room(at), 4);
    assert_eq!(case.connection.scheduled, [1], "it is looked at again");
    case.connection.data(at, 4);
    case.connection.block(at, case.now);
    case.connection.scheduled.clear();
    case.receive(&setting(4, 1 << 20)).expect("a large window");
    assert_eq!(case.connection.scheduled, [1], "it is looked at again");
    // The connection's own is not changed by settings.
    case.connection.data(at, 65_000);
    assert_eq!(case.connection.room(at), 65_535 - 12 - 65_000);
    case.connection.block(at, case.now);
    case.connection.scheduled.clear();
    case.receive(&frame(Kind::WindowUpdate, 0, 0, &[0, 1, 0, 0])).expect("an update");
    assert_eq!(case.connection.scheduled, [1], "it is looked at again");
}

#[test]
fn a_reset_stream_no_longer_waits_for_a_window() {
    let mut case = Case::open();
    case.receive(&request(1)).expect("a good request");
    let at = case.at(1);
    case.connection.block(at, case.now);
    case.receive(&frame(Kind::RstStream, 0, 1, &[0; 4])).expect("a reset");
    assert!(case.connection.blocked.is_empty());
}

/// A peer that opens no window at all takes nothing. That ends the connection, and does not reset its streams one by one,
/// after which nothing would be left to say it by.
#[test]
fn a_stream_is_given_up_for_its_own_window_only() {
    let mut case = Case::open();
    case.receive(&request(1)).expect("a good request");
    let at = case.at(1);
    case.connection.data(at, 65_535);
    case.connection.block(at, case.now);
    case.said();
    let late = case.now + limits().stall_timeout;
    case.connection.last_received = late;
    case.connection.keep_time(late).expect("the connection is somebody else's matter");
    assert!(case.connection.find(1).is_some() && case.connection.waits_for_window());
    case.now = late;
    case.receive(&frame(Kind::WindowUpdate, 0, 0, &[0, 0, 0, 9])).expect("an update");
    case.connection.block(at, late);
    case.connection.last_received = late;
    case.connection.keep_time(late).expect("the others go on");
    assert_eq!(case.connection.find(1), None, "now it is only the stream's that is closed");
}

/// Its window was opened at once: that its turn came late, or that the process was stopped, is no fault of the stream's.
#[test]
fn a_stream_whose_turn_comes_late_is_not_broken_off() {
    let mut case = Case::open();
    case.receive(&request(1)).expect("a good request");
    case.receive(&frame(Kind::WindowUpdate, 0, 0, &[0, 15, 0, 0])).expect("an update");
    let at = case.at(1);
    while case.connection.room(at) > 0 {
        case.connection.data(at, case.connection.room(at));
    }
    for _ in 0..5 {
        case.connection.block(at, case.now);
        assert!(case.connection.find(1).is_some());
        case.now += Duration::from_secs(1);
        case.receive(&frame(Kind::WindowUpdate, 0, 1, &[0, 0, 4, 0])).expect("an update");
        case.now += Duration::from_secs(65);
        case.connection.data(at, 1024);
    }
}

#[test]
fn the_connections_window_is_given_back_whatever_becomes_of_data() {
    // More than the window of the connection in each case.
    const FRAMES: usize = 200;
    let open = |id| frame(Kind::Headers, flag::END_HEADERS, id, &block(&[]));
    // On a stream that we broke off.
    let mut case = Case::open();
    case.receive(&open(1)).expect("a good request");
    let at = case.at(1);
    case.connection.reset(at, Reason::Cancel);
    for _ in 0..FRAMES {
        case.receive(&frame(Kind::Data, 0, 1, &[0; 900])).expect("it could not know");
    }
    // Padding, which nobody reads; a window of the stream's is given back with it.
    let mut case = Case::open();
    case.receive(&open(1)).expect("a good request");
    for _ in 0..FRAMES {
        let padded = [&[200][..], b"x", &[0; 200]].concat();
        case.receive(&frame(Kind::Data, flag::PADDED, 1, &padded)).expect("padding");
        let at = case.at(1);
        case.connection.give_back(at, 1);
    }
}

#[test]
fn the_list_of_scheduled_streams_stays_short() {
    let mut case = Case::open();
    for id in [1, 3, 5] {
        case.receive(&frame(Kind::Headers, flag::END_HEADERS, id, &block(&[]))).expect("a good request");
        for _ in 0..1_000 {
            case.receive(&frame(Kind::Data, 0, id, b"x")).expect("within its window");
        }
    }
    let scheduled = &mut case.connection.scheduled;
    assert!(scheduled.capacity() < 64, "{}", scheduled.capacity());
    scheduled.sort_unstable();
    scheduled.dedup();
    assert_eq!(*scheduled, [1, 3, 5]);
}

#[test]
fn trailers_end_a_request_and_are_looked_at() {
    let mut case = Case::open();
    case.receive(&frame(Kind::Headers, flag::END_HEADERS, 1, &block(&[]))).expect("a good request");
    case.connection.scheduled.clear();
    let mut trailers = Vec::new();
    hpack::encode("a", b"b", &mut trailers);
    case.receive(&frame(Kind::Headers, WHOLE | flag::END_STREAM, 1, &trailers)).expect("good trailers");
    assert_eq!(case.connection.scheduled, [1]);
    let at = case.at(1);
    assert!(case.connection.streams[at].handler.ended);
}

#[test]
fn a_later_goaway_never_names_a_higher_stream() {
    let mut case = Case::open();
    case.receive(&request(1)).expect("a good request");
    case.connection.shut_down(case.now);
    case.receive(&frame(Kind::Ping, flag::ACK, 0, b"goodbye\0")).expect("an answer");
    case.receive(&request(7)).expect("it could not know");
    case.said();
    case.connection.fail(Reason::Protocol);
    let said = case.said();
    assert_eq!(said[0].3[..4], 1_u32.to_be_bytes(), "{said:?}");
}

#[test]
fn heads_that_wait_for_answers_are_bounded_together() {
    let now = Instant::now();
    let wide = Limits { max_streams: 10_000, max_head_bytes: 16 << 10, ..limits() };
    let mut case = Case { connection: Connection::new(Arc::new(wide), now), now };
    case.receive(&[&PREFACE[..], &frame(Kind::Settings, 0, 0, &[])].concat()).expect("a good start");
    case.said();
    let long = "x".repeat(15_000);
    let head = |id| frame(Kind::Headers, WHOLE, id, &block(&[("long", &long)]));
    let mut refused = 0;
    for id in (1..400).step_by(2) {
        case.receive(&head(id)).expect("a good request");
        refused += case.said().iter().filter(|said| said.0 == Kind::RstStream).count();
    }
    assert!((100..150).contains(&refused), "{refused}");
    // Answered heads make room.
    let at = case.at(1);
    case.connection.respond(at, StatusCode::OK, &HeaderMap::new(), false);
    assert!(case.connection.heads < 1 << 20);
}

#[test]
fn heads_larger_than_a_frame_go_out_in_pieces() {
    let mut case = Case::open();
    case.receive(&setting(1, 0)).expect("no table");
    case.said();
    case.receive(&request(1)).expect("a good request");
    let at = case.at(1);
    let mut headers = HeaderMap::new();
    headers.insert("a", "x".repeat(20_000).parse().expect("a value"));
    case.connection.respond(at, StatusCode::OK, &headers, false);
    let said = case.said();
    let shape: Vec<_> = said.iter().map(|(kind, flags, _, payload)| (*kind, *flags, payload.len())).collect();
    assert_eq!(shape[0], (Kind::Headers, 0, 16 << 10));
    assert_eq!((shape[1].0, shape[1].1, shape.len()), (Kind::Continuation, WHOLE, 2));
    assert_eq!(said[0].3[..2], [0x20, 0x88], "first that there is no table, then the status");
}

#[test]
fn a_shutdown_takes_two_steps() {
    let mut case = Case::open();
    case.receive(&request(1)).expect("a good request");
    case.connection.shut_down(case.now);
    let said = case.said();
    assert_eq!(said[0], (Kind::GoAway, 0, 0, [&MAX_WINDOW.to_be_bytes()[..], &[0; 4]].concat()));
    assert_eq!((said[1].0, said[1].1), (Kind::Ping, 0));
    // Sent before the client knew.
    case.receive(&request(3)).expect("a good request");
    case.receive(&frame(Kind::Ping, flag::ACK, 0, &said[1].3)).expect("the answer");
    assert_eq!(case.said(), [(Kind::GoAway, 0, 0, [&3_u32.to_be_bytes()[..], &[0; 4]].concat())]);
    case.receive(&request(5)).expect("it is not looked at");
    assert_eq!(case.connection.find(5), None);
    assert!(!case.connection.is_done());
    for id in [1, 3] {
        let at = case.at(id);
        case.connection.end(at);
    }
    assert!(case.connection.is_done());
}

#[test]
fn a_peer_that_ignores_the_shutdown_ping_still_gets_the_final_goaway() {
    let mut case = Case::open();
    let start = case.now;
    case.receive(&request(1)).expect("a good request");
    case.connection.shut_down(start);
    case.said();
    // It goes on to talk, so that it is no matter of the keep-alive.
    case.now = start + Duration::from_millis(999);
    case.receive(&request(3)).expect("a good request");
    assert_eq!(case.connection.keep_time(case.now), Ok(start + Duration::from_secs(1)));
    assert_eq!(case.said(), []);
    case.now = start + Duration::from_secs(1);
    case.connection.keep_time(case.now).expect("it is heard");
    assert_eq!(case.said(), [(Kind::GoAway, 0, 0, [&3_u32.to_be_bytes()[..], &[0; 4]].concat())]);
    case.receive(&request(5)).expect("it is not looked at");
    assert_eq!(case.connection.find(5), None);
    // An answer that comes late says nothing new.
    case.receive(&frame(Kind::Ping, flag::ACK, 0, b"goodbye\0")).expect("the answer");
    assert_eq!(case.said(), []);
}

#[test]
fn silence_is_asked_about_and_ends() {
    let mut case = Case::open();
    let start = case.now;
    let at = |seconds| start + Duration::from_secs(seconds);
    assert_eq!(case.connection.keep_time(at(29)), Ok(at(30)));
    assert_eq!(case.connection.keep_time(at(30)), Ok(at(40)));
    let said = case.said();
    assert_eq!((said[0].0, said.len()), (Kind::Ping, 1));
    case.now = at(35);
    case.receive(&frame(Kind::Ping, flag::ACK, 0, &said[0].3)).expect("the answer");
    assert_eq!(case.connection.keep_time(at(36)), Ok(at(65)));
    assert_eq!(case.connection.keep_time(at(65)), Ok(at(75)));
    assert!(case.connection.keep_time(at(75)).is_err());
}

#[test]
fn heads_must_be_whole_in_time() {
    let mut silent = Case::silent();
    silent.receive(&PREFACE[..10]).expect("a start");
    assert!(silent.connection.keep_time(silent.now + Duration::from_secs(4)).is_ok());
    assert!(silent.connection.keep_time(silent.now + Duration::from_secs(5)).is_err());

    let mut case = Case::open();
    case.now += Duration::from_secs(7);
    case.receive(&frame(Kind::Headers, 0, 1, &block(&[]))).expect("a start");
    assert!(case.connection.keep_time(case.now + Duration::from_secs(4)).is_ok());
    assert!(case.connection.keep_time(case.now + Duration::from_secs(5)).is_err());
}

#[test]
fn floods_end_the_connection() {
    type Flood = fn(u32) -> Vec<u8>;
    let floods: [(&str, Flood); 11] = [
        ("resets", |id| [request(id), frame(Kind::RstStream, 0, id, &[0; 4])].concat()),
        ("pings", |_| frame(Kind::Ping, 0, 0, &[0; 8])),
        ("settings", |_| setting(3, 1)),
        ("priorities", |id| frame(Kind::Priority, 0, id, &[0; 5])),
        ("frames that nobody knows", |_| [0, 0, 0, 77, 0, 0, 0, 0, 0].to_vec()),
        ("empty data", |id| {
            [if id == 1 { request(1) } else { vec![] }, frame(Kind::Data, 0, 1, &[])].concat()
        }),
        ("requests that are refused", request),
        ("malformed requests", |id| frame(Kind::Headers, WHOLE, id, &[0x82])),
        ("window updates of the connection", |_| frame(Kind::WindowUpdate, 0, 0, &1_u32.to_be_bytes())),
        ("window updates of a stream", |id| {
            let update = frame(Kind::WindowUpdate, 0, 1, &1_u32.to_be_bytes());
            [if id == 1 { request(1) } else { vec![] }, update].concat()
        }),
        ("window updates of nothing", |id| [request(id), frame(Kind::WindowUpdate, 0, id, &[0; 4])].concat()),
    ];
    for (what, flood) in floods {
        let mut case = Case::open();
        let mut ended = None;
        for id in (1..20_000).step_by(2) {
            ended = case.receive(&flood(id)).err();
            case.connection.scheduled.clear();
            if ended.is_some() {
                break;
            }
        }
        assert_eq!(ended.map(|error| error.reason), Some(Reason::EnhanceYourCalm), "{what}");
    }
    let mut case = Case::open();
    case.receive(&frame(Kind::Headers, 0, 1, &[])).expect("a start");
    let ended = (0..100).find_map(|_| case.receive(&frame(Kind::Continuation, 0, 1, &[])).err());
    assert_eq!(ended.map(|error| error.reason), Some(Reason::EnhanceYourCalm), "continuations");
}

#[test]
fn answers_to_frames_that_were_sent_are_no_flood() {
    // Clients that measure the path ping once for each piece of data.
    let mut case = Case::open();
    case.receive(&request(1)).expect("a good request");
    case.receive(&frame(Kind::WindowUpdate, 0, 0, &(1_u32 << 30).to_be_bytes())).expect("an update");
    case.receive(&frame(Kind::WindowUpdate, 0, 1, &(1_u32 << 30).to_be_bytes())).expect("an update");
    for _ in 0..10_000 {
        let at = case.at(1);
        case.connection.data(at, 100);
        case.receive(&frame(Kind::WindowUpdate, 0, 0, &100_u32.to_be_bytes())).expect("an update");
        case.receive(&frame(Kind::WindowUpdate, 0, 1, &100_u32.to_be_bytes())).expect("an update");
        case.receive(&frame(Kind::Ping, 0, 0, &[0; 8])).expect("a ping");
        case.said();
    }
}

#[test]
fn a_peer_that_opens_its_window_by_bytes_earns_nothing() {
    let mut case = Case::open();
    case.receive(&setting(4, 0)).expect("settings");
    case.receive(&request(1)).expect("a good request");
    let ended = (0..10_000).find_map(|_| {
        if let Err(error) = case.receive(&frame(Kind::WindowUpdate, 0, 1, &1_u32.to_be_bytes())) {
            return Some(error.reason);
        }
        let at = case.at(1);
        assert_eq!(case.connection.room(at), 1);
        case.connection.data(at, 1);
        None
    });
    assert_eq!(ended, Some(Reason::EnhanceYourCalm));
}

/// A frame that is likely to be understood.
fn likely_frame() -> impl Strategy<Value = Vec<u8>> {
    let kind = 0_u8..11;
    let payload = prop_oneof![
        proptest::collection::vec(any::<u8>(), 0..40),
        Just(block(&[])),
        Just(vec![0; 8]),
        Just(vec![0, 0, 0, 1]),
        Just(vec![0, 4, 0, 0, 1, 0]),
    ];
    (kind, any::<u8>(), 0_u32..8, payload).prop_map(|(kind, flags, stream, payload)| {
        let [_, l0, l1, l2] = (payload.len() as u32).to_be_bytes();
        [&[l0, l1, l2, kind, flags, 0, 0, 0, stream as u8][..], &payload].concat()
    })
}

proptest! {
    #[test]
    fn however_bytes_are_cut_they_mean_the_same(
        frames in proptest::collection::vec(likely_frame(), 0..20),
        cuts in proptest::collection::vec(1_usize..30, 1..30),
    ) {
        let bytes = [&PREFACE[..], &frame(Kind::Settings, 0, 0, &[]), &frames.concat()].concat();
        let mut whole = Case::silent();
        let at_once = whole.receive(&bytes);
        let mut cut = Case::silent();
        let mut in_pieces = Ok(());
        let mut rest = &bytes[..];
        for len in cuts.iter().cycle() {
            if rest.is_empty() || in_pieces.is_err() { break; }
            let (piece, after) = rest.split_at((*len).min(rest.len()));
            in_pieces = cut.receive(piece);
            rest = after;
        }
        prop_assert_eq!(at_once, in_pieces);
        prop_assert_eq!(whole.said(), cut.said());
        let streams = |case: &Case| format!("{:?}", case.connection.streams);
        prop_assert_eq!(streams(&whole), streams(&cut));
    }
}

/// Memory that the peer makes the relay keep is counted for as long as it is kept.
#[test]
fn bytes_held_for_a_peer_are_counted() {
    let mut case = Case::open();
    let idle = case.connection.held();
    let head = frame(Kind::Headers, 0, 1, &block(&[]));
    case.receive(&head[..12]).expect("half of a frame");
    assert_eq!(case.connection.held(), idle + 12);
    case.receive(&head[12..]).expect("a head that goes on");
    let unfinished = case.connection.held();
    assert_eq!(unfinished, idle + head.len() - HEAD, "the fragment");
    case.receive(&frame(Kind::Continuation, WHOLE, 1, &[])).expect("its end");
    let headed = case.connection.held();
    assert!(headed > idle + 4096, "a stream, and an unanswered head");
    case.receive(&frame(Kind::Data, 0, 1, &[7; 900])).expect("data");
    assert_eq!(case.connection.held(), headed + 900);
    case.connection.give_back(case.at(1), 900);
    case.said();
    assert_eq!(case.connection.held(), headed);
    case.connection.respond(case.at(1), StatusCode::OK, &HeaderMap::new(), false);
    case.said();
    assert_eq!(case.connection.held(), idle + 4096);
    case.connection.reset(case.at(1), Reason::Cancel);
    case.said();
    assert_eq!(case.connection.held(), idle);
}
