//! Names of the form `xdstp`: normal forms and collections (R-XT-01, R-XT-03).

use deltafan::resource::{Collection, normal_form, without_directives};

pub(crate) fn run(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let normal = normal_form(text).into_owned();
    assert_eq!(normal_form(&normal), normal, "a normal form is its own");
    // A name that is not well formed is opaque, directives and all.
    let is_well_formed = normal_form(&format!("{normal}#")) == normal;
    let without = normal_form(without_directives(text));
    assert!(!is_well_formed || without == normal, "directives are no part of a name");
    assert!(text.starts_with("xdstp://") || normal == text);

    let named = Collection::named(&normal);
    if let Some(collection) = named {
        assert!(!collection.covers(&normal) && normal.starts_with(collection.prefix()));
    }
    if let Some(covering) = Collection::covering(&normal) {
        assert!(named.is_none(), "a collection is no member");
        assert!(!is_well_formed || normal_form(&covering) == covering, "{covering} is not the normal form");
        let collection = Collection::named(&covering).expect("it covers something");
        assert!(collection.covers(&normal) && normal.starts_with(collection.prefix()));
    }
}
