//! Sends equal frames to this server of HTTP/2 and to that of the `h2` crate. Both have to answer alike, but where
//! RFC 9113 leaves a choice or `h2` departs from it. [`differences`] has all of these.
//!
//! Each frame is sent when both servers have come to rest, so that both have the same to judge it by.

mod differences;
mod frames;
mod servers;

use std::collections::{BTreeMap, BTreeSet};

use differences::{Case, Outcome};
use frames::{CONTINUATION, DATA, END_HEADERS, Frame, GOAWAY, HEADERS, NO_FRAME, Peer, WINDOW_UPDATE};
use servers::{Ours, Seen, Stream, Theirs};

use super::http2::STREAM_WINDOW;
use super::input::Input;

/// The window of a connection at first.
const DEFAULT_WINDOW: usize = 65_535;

pub(crate) fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let mut peer = Peer::new(&mut input);
    let mut run = Run {
        ours: Ours::new(),
        theirs: Theirs::new(),
        began: false,
        newest: 0,
        window: DEFAULT_WINDOW,
        in_block: false,
        early: false,
        excused: BTreeSet::new(),
        received: BTreeMap::new(),
    };
    let mut next = Some(peer.first());
    while let Some(frame) = next {
        next = if run.step(&frame) { peer.next() } else { None };
    }
}

struct Run {
    ours: Ours,
    theirs: Theirs,
    /// The first frame was sent.
    began: bool,
    /// The newest stream that the peer has used.
    newest: u32,
    /// Bytes that the peer takes on the connection.
    window: usize,
    /// A block of headers is not whole.
    in_block: bool,
    /// The other server has found a fault in it already.
    early: bool,
    /// Streams in which the two have differed as they may.
    excused: BTreeSet<u32>,
    /// Data that was sent, by stream, and on all together.
    received: BTreeMap<u32, usize>,
}

impl Run {
    /// Sends a frame to both. Whether they can be compared further.
    fn step(&mut self, frame: &Frame) -> bool {
        let (bytes, id) = (frame.bytes(), frame.stream());
        let [before, theirs_before] = [&self.ours.seen, &self.theirs.seen].map(|seen| seen.stream(id));
        let exceeds_window = self.exceeds_window(frame);
        self.ours.send(&bytes, id);
        if !self.early {
            self.theirs.send(&bytes);
        }
        let (now, theirs_now) = (self.ours.seen.stream(id), self.theirs.seen.stream(id));
        let case = Case {
            frame,
            ours: Outcome::of(&self.ours.seen, &before, &now),
            theirs: Outcome::of(&self.theirs.seen, &theirs_before, &theirs_now),
            before: &before,
            now: &now,
            theirs_now: &theirs_now,
            was_used: self.newest >= id && !id.is_multiple_of(2),
            newest: self.newest,
            in_block: self.in_block,
            began: std::mem::replace(&mut self.began, true),
            exceeds_window,
        };
        self.in_block = matches!(frame.kind, HEADERS | CONTINUATION) && !frame.has(END_HEADERS);
        if frame.kind == HEADERS {
            self.newest = self.newest.max(id);
        }
        if frame.kind == WINDOW_UPDATE && id == 0 {
            self.window = self.window.saturating_add(frame.number());
        }
        if self.early {
            assert!(
                self.in_block || case.is_fault_of_block(),
                "a block of headers in which h2 finds a fault, and this server none"
            );
            return self.in_block && case.ours == Outcome::Goes;
        }
        self.judge(&case)
    }

    fn judge(&mut self, case: &Case<'_>) -> bool {
        let (frame, id) = (case.frame, case.frame.stream());
        if [&self.ours.seen, &self.theirs.seen].iter().any(|seen| seen.data >= self.window) {
            // Which stream has its turn when the window of the connection opens is each server's choice.
            return false;
        }
        if case.ours == case.theirs {
            self.compare(case);
            let is_last = matches!(case.ours, Outcome::Gone(_))
                // h2 leaves when the peer says that it does,
                || matches!(frame.kind, GOAWAY | NO_FRAME)
                // and does not decode the fields of a stream that depends on itself.
                || frame.kind == HEADERS && frame.dependency() == Some(id);
            if case.ours == Outcome::TooLarge {
                self.excused.insert(id);
            }
            return !is_last;
        }
        let both = [case.ours, case.theirs];
        // How many streams are open differs with them.
        let is_consequence = self.excused.contains(&id)
            || !self.excused.is_empty() && both.contains(&Outcome::Reset(differences::REFUSED_STREAM));
        if is_consequence || frame.kind == GOAWAY {
            return false;
        }
        let Some(difference) = differences::find(case) else {
            panic!("{:?} here, {:?} with h2, after {frame:?}; {case:?}", case.ours, case.theirs)
        };
        self.early = difference.is_early();
        self.excused.insert(id);
        self.early || !both.iter().any(|outcome| matches!(outcome, Outcome::Gone(_)))
    }

    fn compare(&self, case: &Case<'_>) {
        let (ours, theirs) = (&self.ours.seen, &self.theirs.seen);
        if let Some((last, _)) = ours.go_away {
            let newest = ours.streams.iter().rev().find(|(_, stream)| stream.head.is_some());
            assert!(newest.is_none_or(|(id, _)| *id <= last), "a request above the last stream of GOAWAY");
            return;
        }
        let told = |seen: &Seen| (seen.settings, seen.pongs.clone());
        assert_eq!(told(ours), told(theirs), "acknowledgements after {:?}", case.frame);
        let none = Stream::default();
        let ids: BTreeSet<u32> = ours.streams.keys().chain(theirs.streams.keys()).copied().collect();
        for id in ids.difference(&self.excused).filter(|_| case.ours != Outcome::TooLarge) {
            let [one, other] = [ours, theirs].map(|seen| seen.streams.get(id).unwrap_or(&none));
            assert!(one == other, "stream {id} after {:?}: {one:?} here, {other:?} with h2", case.frame);
        }
    }

    /// Whether this is more data than this server has opened windows for.
    fn exceeds_window(&mut self, frame: &Frame) -> bool {
        if frame.kind != DATA {
            return false;
        }
        let windows = &self.ours.seen.windows;
        let granted = |id: u32| windows.get(&id).copied().unwrap_or_default();
        let id = frame.stream();
        [(0, DEFAULT_WINDOW + granted(0)), (id, STREAM_WINDOW as usize + granted(id))].into_iter().any(
            |(id, window)| {
                let received = self.received.entry(id).or_default();
                *received += frame.payload.len();
                *received > window
            },
        )
    }
}
