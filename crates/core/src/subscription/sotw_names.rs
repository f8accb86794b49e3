//! Reading of SotW lists of names.

use super::subscription_edit::SubscriptionEdit;
use crate::cache::Subscription;
use crate::proto::ResourceLocator;

/// Reading of SotW lists of names, which depends on earlier lists (R-SotW-13).
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SotwNames {
    /// Whether a name, or `*`, was sent on this stream. Then an empty list means nothing.
    explicit: bool,
}

impl SotwNames {
    pub(super) const fn is_explicit(self) -> bool {
        self.explicit
    }

    pub(super) fn read(
        &mut self,
        names: &[String],
        locators: Vec<ResourceLocator>,
        legacy_wildcard: bool,
    ) -> Subscription {
        self.explicit |= !names.is_empty() || !locators.is_empty();
        let mut asks = SubscriptionEdit::new(!self.explicit && legacy_wildcard);
        names.iter().for_each(|name| drop(asks.subscribe(name)));
        locators.into_iter().for_each(|locator| drop(asks.locate(locator)));
        asks.into_plain_subscription()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(wants: &mut SotwNames, names: &[&str]) -> String {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        format!("{:?}", wants.read(&names, Vec::new(), true))
    }

    #[test]
    fn r_sotw_13_wildcard_vector_of_the_protocol() {
        let mut wants = SotwNames::default();
        assert_eq!(read(&mut wants, &[]), r#"{"*"}"#);
        assert_eq!(read(&mut wants, &["*", "A"]), r#"{"*", "A"}"#);
        assert_eq!(read(&mut wants, &["A"]), r#"{"A"}"#);
        assert_eq!(read(&mut wants, &[]), "{}");
    }

    #[test]
    fn r_sotw_14_without_legacy_only_the_star_is_a_wildcard() {
        let mut wants = SotwNames::default();
        assert!(wants.read(&[], Vec::new(), false).is_empty());
        assert!(wants.read(&["*".to_owned()], Vec::new(), false).wildcard);
    }
}
