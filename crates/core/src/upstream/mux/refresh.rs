//! Resources that are asked for anew because an operator says so.

use std::sync::Arc;

use super::Mux;
use crate::resource::{Name, TypeUrl};

/// Resources that are to be asked for anew: one name of a type, or all that is asked for of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refresh {
    /// The type.
    pub type_url: TypeUrl,
    /// The name; `None` for everything.
    pub name: Option<Name>,
}

impl Mux {
    /// Asks for resources anew, on a stream that is opened for that: origins differ in whether they answer a name again on a stream on
    /// which they have sent it (O1). The version of what is held is not told there, so that the origin sends it whole.
    ///
    /// Nothing is taken away meanwhile. A resource that the answer lacks is in doubt, as if its version could not be told.
    pub fn refresh(&mut self, what: &Refresh) {
        let cache = Arc::clone(self.writer.cache());
        if let Some(topic_set) = self.topic_sets.get_mut(&what.type_url) {
            topic_set.refresh(what.name.as_ref(), &cache);
            self.tidy(&what.type_url);
        }
    }
}
