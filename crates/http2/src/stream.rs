//! State of one stream, and flow-control windows of both directions.

use crate::frame::MAX_WINDOW;
use crate::rates::MinRate;

/// The driver's part of a stream, with the callbacks for its request.
pub(super) trait StreamHandler {
    fn data(&mut self, payload: &[u8]);
    fn end(&mut self);
}

/// Window that the peer sends into.
///
/// Example with 100 bytes: the peer sends 60, which leaves 40. When 49 of them were read nothing is returned yet; with
/// the 60th byte read, a WINDOW_UPDATE of 60 goes out.
#[derive(Clone, Copy, Debug)]
pub(super) struct RecvWindow {
    /// Bytes that the peer may still send.
    left: u32,
    /// Bytes that were read and not yet returned to the peer.
    owed: u32,
    size: u32,
}

impl RecvWindow {
    pub(super) const fn new(size: u32) -> Self {
        Self { left: size, owed: 0, size }
    }

    /// Bytes that arrived and were not read.
    pub(super) const fn unread(&self) -> usize {
        self.size.saturating_sub(self.left.saturating_add(self.owed)) as usize
    }

    /// Takes bytes that the peer sent. Returns whether they fit into the window.
    #[must_use]
    pub(super) fn take(&mut self, len: usize) -> bool {
        let left = u32::try_from(len).ok().and_then(|len| self.left.checked_sub(len));
        self.left = left.unwrap_or(0);
        left.is_some()
    }

    /// Notes read bytes. Returns the WINDOW_UPDATE to send, if any: half a window at a time, or
    /// less for a window smaller than one read.
    pub(super) fn give_back(&mut self, len: usize) -> Option<u32> {
        self.owed += u32::try_from(len).unwrap_or(u32::MAX).min(self.size - self.left - self.owed);
        (self.owed > 0 && self.owed >= self.size / 2).then(|| {
            let owed = std::mem::take(&mut self.owed);
            self.left += owed;
            owed
        })
    }
}

/// Window that we send into. SETTINGS can make it negative (RFC 9113, section 6.9.2).
#[derive(Clone, Copy, Debug)]
pub(super) struct SendWindow(i64);

impl SendWindow {
    pub(super) fn new(size: u32) -> Self {
        Self(i64::from(size))
    }

    pub(super) fn room(self) -> usize {
        usize::try_from(self.0).unwrap_or(0)
    }

    pub(super) const fn spend(&mut self, len: usize) {
        self.0 -= len as i64;
    }

    /// Widens the window. Returns whether it is within the maximum.
    #[must_use]
    pub(super) fn widen(&mut self, by: i64) -> bool {
        self.0 += by;
        self.0 <= i64::from(MAX_WINDOW)
    }
}

/// A stream that is open in at least one direction.
#[derive(Debug)]
pub(super) struct Stream<X> {
    pub(super) id: u32,
    pub(super) send_window: SendWindow,
    pub(super) recv_window: RecvWindow,
    /// Whether it is on the list of streams that wait for a window.
    pub(super) blocked: bool,
    pub(super) window_wait: MinRate,
    /// Bytes of its request's header block, until the response starts.
    pub(super) head_bytes: usize,
    pub(super) ended: bool,
    /// Bytes of the body still to come, if `content-length` said.
    pub(super) body_left: Option<u64>,
    pub(super) handler: X,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_a_window_is_given_back_at_a_time() {
        let mut window = RecvWindow::new(100);
        assert!(window.take(60));
        assert_eq!(window.give_back(49), None);
        assert_eq!(window.give_back(11), Some(60));
        assert!(window.take(100));
        assert!(!window.take(1), "more than was allowed");
        assert_eq!(window.give_back(1000), Some(100), "never more than was taken");
    }

    #[test]
    fn a_window_can_be_negative() {
        let mut window = SendWindow::new(10);
        window.spend(8);
        assert!(window.widen(-5));
        assert_eq!(window.room(), 0);
        assert!(window.widen(4));
        assert_eq!(window.room(), 1);
        assert!(!window.widen(i64::from(MAX_WINDOW)));
    }
}
