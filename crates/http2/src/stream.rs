//! One stream, and the windows of both directions.

use super::frame::MAX_WINDOW;
use super::pace::Pace;

/// What is kept with a stream by who serves it.
pub(super) trait Exchange {
    /// A piece of the request's body.
    fn data(&mut self, payload: &[u8]);
    /// The request is whole.
    fn end(&mut self);
}

/// A window that the peer sends into.
#[derive(Clone, Copy, Debug)]
pub(super) struct Inward {
    /// What the peer may still send.
    left: u32,
    /// What was read and not yet given back.
    owed: u32,
    size: u32,
}

impl Inward {
    pub(super) const fn new(size: u32) -> Self {
        Self { left: size, owed: 0, size }
    }

    /// Bytes that were sent and not yet read.
    pub(super) const fn unread(&self) -> usize {
        self.size.saturating_sub(self.left.saturating_add(self.owed)) as usize
    }

    /// The peer has sent so much. Whether it was allowed to.
    #[must_use]
    pub(super) fn take(&mut self, len: usize) -> bool {
        let left = u32::try_from(len).ok().and_then(|len| self.left.checked_sub(len));
        self.left = left.unwrap_or(0);
        left.is_some()
    }

    /// So much of it was read. Returns what is to be given back now: half a window at a time, or as much as a window that
    /// is smaller than what is read at once allows.
    pub(super) fn give_back(&mut self, len: usize) -> Option<u32> {
        self.owed += u32::try_from(len).unwrap_or(u32::MAX).min(self.size - self.left - self.owed);
        (self.owed > 0 && self.owed >= self.size / 2).then(|| {
            let owed = std::mem::take(&mut self.owed);
            self.left += owed;
            owed
        })
    }
}

/// A window that we send into. Settings can make it negative (RFC 9113, section 6.9.2).
#[derive(Clone, Copy, Debug)]
pub(super) struct Outward(i64);

impl Outward {
    pub(super) fn new(size: u32) -> Self {
        Self(i64::from(size))
    }

    pub(super) fn room(self) -> usize {
        usize::try_from(self.0).unwrap_or(0)
    }

    pub(super) const fn spend(&mut self, len: usize) {
        self.0 -= len as i64;
    }

    /// Whether it is still within the largest.
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
    pub(super) outward: Outward,
    pub(super) inward: Inward,
    /// Whether it is on the list of those that wait for a window,
    pub(super) blocked: bool,
    /// and the wait for a window.
    pub(super) starved: Pace,
    /// What its request's head takes until it is answered.
    pub(super) head_bytes: usize,
    /// What of its data nobody has read.
    pub(super) unread: usize,
    /// Whether the request is whole.
    pub(super) ended: bool,
    /// What of the body is to come, where that was said.
    pub(super) missing: Option<u64>,
    pub(super) exchange: X,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_a_window_is_given_back_at_a_time() {
        let mut window = Inward::new(100);
        assert!(window.take(60));
        assert_eq!(window.give_back(49), None);
        assert_eq!(window.give_back(11), Some(60));
        assert!(window.take(100));
        assert!(!window.take(1), "more than was allowed");
        assert_eq!(window.give_back(1000), Some(100), "never more than was taken");
    }

    #[test]
    fn a_window_can_be_negative() {
        let mut window = Outward::new(10);
        window.spend(8);
        assert!(window.widen(-5));
        assert_eq!(window.room(), 0);
        assert!(window.widen(4));
        assert_eq!(window.room(), 1);
        assert!(!window.widen(i64::from(MAX_WINDOW)));
    }
}
