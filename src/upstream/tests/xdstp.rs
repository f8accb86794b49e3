//! Names of the form `xdstp://…`, as an origin spells them.

use super::*;

const EDS: Kind = Kind::Endpoint;
const NORMAL: &str = "xdstp://auth/t/web?a=2&b=1";
const OTHER: &str = "xdstp://auth/t/web?b=1&a=2";

#[test]
fn r_xt_01_the_origin_may_spell_a_name_as_it_likes() {
    let mut rig = Rig::connected();
    rig.client("a", EDS, &[NORMAL]);
    assert_eq!(rig.request(Primary).resource_names_subscribe, [NORMAL]);
    rig.hear(Primary, &Answer::of(EDS, "1").set(OTHER, "v1"));
    assert_eq!(rig.seen(EDS, NORMAL), "v1");
    rig.hear(Primary, &Answer::of(EDS, "2").remove(OTHER));
    assert_eq!(rig.seen(EDS, NORMAL), "absent");
    assert_eq!(rig.mux.counters().unrequested_resources.get(), 0);
}

#[test]
fn r_xt_01_two_spellings_of_one_name_are_a_name_twice() {
    for answer in [
        Answer::of(EDS, "1").set(OTHER, "v1").set(NORMAL, "v2"),
        Answer::of(EDS, "1").set(OTHER, "v1").remove(NORMAL),
    ] {
        let mut rig = Rig::connected();
        rig.client("a", EDS, &[NORMAL]);
        rig.requests(Primary);
        rig.mux.on_message(Primary, answer.bytes(), rig.now).expect("a response");
        assert!(rig.request(Primary).error_detail.is_some());
        assert_eq!(rig.seen(EDS, NORMAL), "unknown");
    }
}
