//! Lists with at least one entry.

/// A list with at least one entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NonEmpty<T>(Vec<T>);

impl<T> NonEmpty<T> {
    /// A list of one.
    pub fn one(entry: T) -> Self {
        Self(vec![entry])
    }

    /// `None` if there is nothing in it.
    pub fn new(entries: Vec<T>) -> Option<Self> {
        (!entries.is_empty()).then_some(Self(entries))
    }

    /// The entry that is always there.
    pub fn first(&self) -> &T {
        &self.0[0]
    }
}

impl<T> std::ops::Deref for NonEmpty<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.0
    }
}
