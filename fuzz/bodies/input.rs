//! Decisions taken from the bytes of an input. What is asked for past their end is zero, so that every input means
//! something and short ones mean something simple.

pub(crate) struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    pub(crate) const fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn byte(&mut self) -> u8 {
        let Some((&byte, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        byte
    }

    pub(crate) fn flag(&mut self) -> bool {
        self.byte() & 1 == 1
    }

    /// At most so many bytes.
    pub(crate) fn take(&mut self, len: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        taken
    }

    /// A byte that says how many, and these.
    pub(crate) fn piece(&mut self) -> &'a [u8] {
        let len = usize::from(self.byte());
        self.take(len)
    }

    pub(crate) fn pick<'i, T>(&mut self, items: &'i [T]) -> &'i T {
        &items[usize::from(self.byte()) % items.len()]
    }

    /// Each item whose bit is set in the next byte.
    pub(crate) fn some<'i, T>(&mut self, items: &'i [T]) -> impl Iterator<Item = &'i T> + use<'i, T> {
        let mask = self.byte();
        items.iter().enumerate().filter(move |(at, _)| mask >> (at % 8) & 1 == 1).map(|(_, item)| item)
    }
}
