//! Demand of clients for subscriptions upstream, by their parameters.

use std::sync::Arc;

use super::cohort_index::Interest;
use super::type_store::TypeCache;
use crate::resource::{Name, Parameters, TypeUrl};

/// Demand of clients with one set of parameters for a type, where it changed since last asked.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// The type.
    pub type_url: TypeUrl,
    /// The parameters.
    pub parameters: Parameters,
    /// Their demand.
    pub interest: Interest,
    /// The store that is to be [filled](super::Writer::fill), where these clients have further parameters or may not see all.
    pub(super) mixed: Option<Arc<TypeCache>>,
    /// Names that clients of that store ask for, or did, and may not see: nobody upstream is told.
    pub(super) refused: Vec<(Name, bool)>,
    /// Names that observers of that store ask for: nobody upstream is told of these either.
    pub(super) looked: Vec<Name>,
}

impl Wanted {
    /// Splits the demand of a store by parameters.
    pub(super) fn split(of: &Arc<TypeCache>, (interest, looked): (Interest, Vec<Name>)) -> Vec<Self> {
        let type_url = of.type_url.clone();
        if let Some(parameters) = of.parameter_view.as_uniform() {
            let parameters = parameters.clone();
            let (refused, looked) = Default::default();
            return vec![Self { type_url, parameters, interest, mixed: None, refused, looked }];
        }
        let part = |parameters: &Parameters| {
            let names =
                interest.names.iter().filter(|(name, _)| of.parameter_view.of(name.as_str()) == parameters);
            let allows = |name: &Name| of.parameter_view.scope().allows(name.as_str());
            let (names, mut refused): (Vec<_>, Vec<_>) = names.cloned().partition(|(name, _)| allows(name));
            let looked = looked.iter().filter(|name| of.parameter_view.of(name.as_str()) == parameters);
            let (looked, unseen): (Vec<Name>, Vec<_>) = looked.cloned().partition(allows);
            refused.extend(unseen.into_iter().map(|name| (name, false)));
            let wildcard = interest.wildcard && of.parameter_view.wildcard() == parameters;
            Self {
                type_url: type_url.clone(),
                parameters: parameters.clone(),
                interest: Interest {
                    wildcard,
                    names,
                    proof: interest.proof,
                    refreshed: interest.refreshed.clone(),
                },
                mixed: Some(Arc::clone(of)),
                refused,
                looked,
            }
        };
        of.parameter_view.parameters().iter().map(part).collect()
    }
}
