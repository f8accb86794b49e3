//! The stores of a cache, by type and by the parameters through which their clients see it.
//!
//! Owns finding, making and dropping them. Knows nothing of what they hold.
//!
//! A type has one store for clients without parameters, one for each set of parameters, one for each client that asks for
//! some names with other parameters than for the rest (R-DP-10), and one for those who may not see everything, for each
//! scope and set: these are filled from the others.
//!
//! Invariant: the number of stores is bounded, whoever asks, and a store that somebody may still join is not dropped.

use std::sync::Arc;
use std::time::{Duration, Instant};

use foldhash::HashMap;
use parking_lot::Mutex;

use super::{Lens, TypeCache};
use crate::resource::{Kind, TypeUrl};

/// The relay has as many types, or as many sets of parameters, as it may; the peer that asked for one more is told so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Full {
    /// Of types.
    #[error("the relay already serves {0} resource types, its limit")]
    Types(usize),
    /// Of sets of parameters and of what may be seen, counted per type.
    #[error(
        "the relay already serves {0} sets of dynamic parameters and of names that clients may see, its limit (cache.max_parameter_sets)"
    )]
    ParameterSets(usize),
}

/// When the origin first answered for a type on the connection that stands, or was asked for its names anew since. All stores of the type share it: an origin that
/// answers for one set of parameters answers for the type.
#[derive(Debug, Default)]
pub(super) struct Answering(Mutex<Option<Instant>>);

impl Answering {
    pub(super) fn since(&self) -> Option<Instant> {
        *self.0.lock()
    }

    /// An answer came.
    pub(super) fn answer(&self, now: Instant) {
        self.0.lock().get_or_insert(now);
    }

    /// The relay did not run for this long.
    pub(super) fn shift(&self, pause: Duration, now: Instant) {
        if let Some(first) = &mut *self.0.lock() {
            *first = (*first + pause).min(now);
        }
    }

    /// It is asked anew.
    pub(super) fn begin_anew(&self, now: Instant) {
        if let Some(since) = &mut *self.0.lock() {
            *since = now;
        }
    }

    pub(super) fn end(&self) {
        *self.0.lock() = None;
    }
}

/// How many there may be.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    pub(super) types: usize,
    pub(super) parameter_sets: usize,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Stores {
    plain: HashMap<Box<str>, Arc<TypeCache>>,
    /// All others, by their types.
    seen: HashMap<Box<str>, HashMap<Lens, Arc<TypeCache>>>,
    seen_count: usize,
    newest: u32,
}

impl Stores {
    pub(super) fn find(&self, type_url: &TypeUrl, lens: &Lens) -> Option<&Arc<TypeCache>> {
        if *lens == Lens::default() {
            self.plain.get(type_url.as_str())
        } else {
            self.seen.get(type_url.as_str())?.get(lens)
        }
    }

    /// The store, made with its number if it is not there.
    pub(super) fn enter(
        &mut self,
        type_url: &TypeUrl,
        lens: &Lens,
        bounds: Bounds,
        make: impl FnOnce(u32, Arc<Answering>) -> TypeCache,
    ) -> Result<Arc<TypeCache>, Full> {
        if let Some(found) = self.find(type_url, lens) {
            return Ok(Arc::clone(found));
        }
        if *lens == Lens::default() {
            self.make_room_for(type_url, bounds)?;
        } else if self.seen_count >= bounds.parameter_sets {
            self.drop_unused();
            if self.seen_count >= bounds.parameter_sets {
                return Err(Full::ParameterSets(bounds.parameter_sets));
            }
        }
        self.newest += 1;
        let answering = self.any(type_url).map(|of| Arc::clone(&of.answering)).unwrap_or_default();
        let made = Arc::new(make(self.newest, answering));
        let url: Box<str> = type_url.as_str().into();
        if *lens == Lens::default() {
            self.plain.insert(url, Arc::clone(&made));
        } else {
            self.seen.entry(url).or_default().insert(lens.clone(), Arc::clone(&made));
            self.seen_count += 1;
        }
        Ok(made)
    }

    fn make_room_for(&mut self, type_url: &TypeUrl, bounds: Bounds) -> Result<(), Full> {
        // The few types of the protocol have room whatever else is asked for.
        let is_full = |plain: &HashMap<Box<str>, Arc<TypeCache>>| {
            type_url.kind() == Kind::Other && plain.len() >= bounds.types
        };
        if is_full(&self.plain) {
            // Types that nobody asks for and of which nothing is known make room.
            self.plain.retain(|_, of| is_used(of) || !of.snapshot().is_blank());
        }
        if is_full(&self.plain) { Err(Full::Types(bounds.types)) } else { Ok(()) }
    }

    /// Drops the stores of parameters that nobody has any more and of which the origin is asked nothing.
    pub(super) fn drop_unused(&mut self) {
        for stores in self.seen.values_mut() {
            // What a client that mixed parameters has left behind is nobody's.
            stores.retain(|lens, of| {
                is_used(of) || (lens.as_uniform().is_some() && of.snapshot().holds_anything())
            });
        }
        self.seen.retain(|_, stores| !stores.is_empty());
        self.seen_count = self.seen.values().map(HashMap::len).sum();
    }

    /// The stores of a type that see it through parameters.
    pub(super) fn seen(&self, type_url: &TypeUrl) -> impl Iterator<Item = &Arc<TypeCache>> {
        self.seen.get(type_url.as_str()).into_iter().flat_map(HashMap::values)
    }

    /// Some store of a type, if there is any.
    pub(super) fn any(&self, type_url: &TypeUrl) -> Option<&Arc<TypeCache>> {
        self.plain.get(type_url.as_str()).or_else(|| self.seen(type_url).next())
    }

    /// The state of the origin's answers, once for each type.
    pub(super) fn answering(&self) -> impl Iterator<Item = (&TypeUrl, &Answering)> {
        let others = self.seen.iter().filter(|(type_url, _)| !self.plain.contains_key(&**type_url));
        let others = others.filter_map(|(_, stores)| stores.values().next());
        self.plain.values().chain(others).map(|of| (&of.type_url, &*of.answering))
    }

    /// Whether any client asks for some names with other parameters than for the rest, or may not see all names.
    pub(super) fn has_mixed(&self) -> bool {
        self.seen.values().flat_map(HashMap::keys).any(|lens| lens.as_uniform().is_none())
    }

    /// All stores.
    pub(super) fn all(&self) -> impl Iterator<Item = &Arc<TypeCache>> {
        self.plain.values().chain(self.seen.values().flat_map(HashMap::values))
    }
}

/// Whether somebody has it in hand, or subscribes to anything in it, or did and the upstream does not know yet.
fn is_used(of: &Arc<TypeCache>) -> bool {
    Arc::strong_count(of) > 1 || !of.registry.lock().is_idle()
}
