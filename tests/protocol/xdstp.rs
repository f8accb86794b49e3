//! Names of the form `xdstp://…`: R-XT.

use deltafan::cache::Interest;
use deltafan::proto;

use crate::support::{Bed, strings, url};

const NORMAL: &str = "xdstp://auth/t/web?a=2&b=1";
const OTHER: &str = "xdstp://auth/t/web?b=1&a=2";
const ESCAPED: &str = "xdstp://auth/t/%77eb?a=%32&b=1";

/// What is wanted upstream of endpoints, where that changed.
fn interest(bed: &Bed) -> Vec<(String, bool)> {
    let of_eds = bed.cache.take_interest().into_iter().find(|(type_url, _)| *type_url == url("eds"));
    let Interest { names, .. } = of_eds.map_or_else(|| panic!("it changed"), |(_, interest)| interest);
    names.into_iter().map(|(name, wanted)| (name.to_string(), wanted)).collect()
}

#[test]
fn r_xt_01_spellings_of_one_name_share_a_resource_and_a_subscription() {
    let mut bed = Bed::new();
    let mut clients = [NORMAL, OTHER, ESCAPED].map(|name| {
        let mut client = bed.delta();
        client.change(&bed, "eds", name);
        (name, client)
    });
    let mut sotw = bed.sotw();
    sotw.ask(&bed, "eds", &[OTHER, ESCAPED]);
    assert_eq!(interest(&bed), [(NORMAL.to_owned(), true)]);

    bed.named(&format!("eds {NORMAL}:1"));
    for (name, client) in &mut clients {
        assert_eq!(client.acked(&bed), [format!("eds {name}:1")]);
    }
    assert_eq!(
        sotw.acked_with(&bed, &[("eds", &[OTHER, ESCAPED])]),
        [format!("eds {NORMAL}:1")],
        "as it is inside"
    );
    bed.named(&format!("eds -{NORMAL}"));
    for (name, client) in &mut clients {
        assert_eq!(client.acked(&bed), [format!("eds -{name}")]);
    }

    drop(clients);
    sotw.ask(&bed, "eds", &[]);
    assert_eq!(interest(&bed), [(NORMAL.to_owned(), false)]);
}

#[test]
fn r_xt_01_a_subscription_is_ended_and_repeated_by_any_spelling() {
    let mut bed = Bed::new();
    bed.named(&format!("eds {NORMAL}:1"));
    let mut client = bed.delta();
    client.change(&bed, "eds", &format!("{OTHER} -{ESCAPED}"));
    assert_eq!(client.acked(&bed), Vec::<String>::new(), "subscribed to and unsubscribed from");
    client.change(&bed, "eds", OTHER);
    assert_eq!(client.acked(&bed), [format!("eds {OTHER}:1")]);
    client.change(&bed, "eds", ESCAPED);
    assert_eq!(client.acked(&bed), [format!("eds {ESCAPED}:1")], "by the name asked for last (R-Delta-04)");
    client.change(&bed, "eds", NORMAL);
    assert_eq!(client.acked(&bed), [format!("eds {NORMAL}:1")]);
    client.change(&bed, "eds", &format!("-{OTHER}"));
    bed.named(&format!("eds {NORMAL}:2"));
    assert_eq!(client.acked(&bed), Vec::<String>::new());
}

#[test]
fn r_xt_01_versions_held_count_by_any_spelling() {
    let mut bed = Bed::knowing(&["cds"]);
    bed.origin(&format!("cds {NORMAL}:1 plain:1"));
    let mut client = bed.delta();
    client.resume(&bed, "cds", &["*"], &[(OTHER, "1"), ("plain", "1")]);
    assert_eq!(client.acked(&bed), ["cds"], "it holds both");
    let mut older = bed.delta();
    older.resume(&bed, "cds", &["*"], &[(OTHER, "0"), ("plain", "1")]);
    assert_eq!(older.acked(&bed), [format!("cds {NORMAL}:1")]);
}

#[test]
fn r_xt_01_clients_of_one_spelling_share_frames() {
    let mut bed = Bed::new();
    bed.named(&format!("eds {NORMAL}:1"));
    let mut clients: Vec<_> = (0..20).map(|_| bed.delta()).collect();
    for client in &mut clients {
        client.change(&bed, "eds", OTHER);
        client.acked(&bed);
    }
    let before = bed.cache.encoder().encodes();
    bed.named(&format!("eds {NORMAL}:2"));
    for client in &mut clients {
        assert_eq!(client.acked(&bed), [format!("eds {OTHER}:2")]);
    }
    assert_eq!(bed.cache.encoder().encodes() - before, 1);
}

#[test]
fn r_xt_02_directives_are_not_asked_for() {
    let mut bed = Bed::new();
    let mut client = bed.delta();
    client.change(&bed, "eds", &format!("{OTHER}#entry=x"));
    assert_eq!(interest(&bed), [(NORMAL.to_owned(), true)]);
    bed.named(&format!("eds {NORMAL}:1"));
    assert_eq!(client.acked(&bed), [format!("eds {OTHER}:1")]);
    let request = proto::DiscoveryRequest {
        type_url: url("eds").as_str().to_owned(),
        resource_names: strings(&[&format!("{NORMAL}#alt=y")]),
        ..proto::DiscoveryRequest::default()
    };
    let mut sotw = bed.sotw();
    sotw.hear_sotw(&bed, request).unwrap();
    assert_eq!(sotw.told(&bed), [format!("eds {NORMAL}:1")]);
}
