//! Clusters that routes name.
//!
//! Owns where a RouteConfiguration or a VirtualHost has them: in `cluster` and `weighted_clusters`
//! of an action. Not those of mirrors, nor those chosen by a header, a plugin or a matcher tree. A
//! malformed body has none.

use super::wire::{self, Field};
use super::{Kind, Name, Resource};

/// In order, perhaps repeated.
pub fn clusters_in_routes(kind: Kind, resource: &Resource) -> Vec<Name> {
    const ANY_VALUE: u32 = 2;
    const VIRTUAL_HOSTS: u32 = 2;
    const ROUTES: u32 = 3;
    const ROUTE_ACTION: u32 = 2;
    const CLUSTER: u32 = 1;
    const WEIGHTED_CLUSTERS: u32 = 3;
    const WEIGHTED_CLUSTER: u32 = 1;
    const NAME: u32 = 1;

    let values = messages(resource.body(), ANY_VALUE);
    let hosts: Vec<&[u8]> = match kind {
        Kind::Route => values.flat_map(|value| messages(value, VIRTUAL_HOSTS)).collect(),
        Kind::VirtualHost => values.collect(),
        _ => return Vec::new(),
    };
    let routes = hosts.into_iter().flat_map(|host| messages(host, ROUTES));
    let actions = routes.flat_map(|route| messages(route, ROUTE_ACTION));
    let names = actions.flat_map(|action| {
        let weighted = messages(action, WEIGHTED_CLUSTERS).flat_map(|all| messages(all, WEIGHTED_CLUSTER));
        messages(action, CLUSTER).chain(weighted.flat_map(|one| messages(one, NAME)))
    });
    names.filter_map(|name| std::str::from_utf8(name).ok()).map(Name::from).collect()
}

fn messages(message: &[u8], number: u32) -> impl Iterator<Item = &[u8]> {
    let is_it = move |field: &Field<'_>| field.number == number;
    wire::fields(message).flatten().filter(is_it).filter_map(|field| field.bytes().ok())
}

#[cfg(test)]
mod tests {

    use super::*;
    use crate::resource::wire::field;
    use crate::resource::{Envelope, TypeUrl};

    fn resource(kind: Kind, body: &[u8]) -> Resource {
        let type_url = TypeUrl::from(kind);
        let any = [field(1, type_url.as_str().as_bytes()), field(2, body)].concat();
        let sent = [field(2, &any), field(3, b"r")].concat();
        Envelope::parse(&sent, &type_url).unwrap().encode(&type_url, "r".into()).unwrap()
    }

    #[test]
    fn clusters_are_read_of_actions_alone() {
        let to = |action: &[u8]| field(3, &[field(1, b"match"), field(2, action)].concat());
        let weighted =
            [field(1, &field(1, b"b")), field(1, &[field(1, b"c"), vec![0x10, 1]].concat())].concat();
        let by_header = field(2, b"x-cluster");
        let redirect = field(3, &field(3, b"elsewhere"));
        let host = [
            field(1, b"host"),
            field(2, b"*"),
            to(&field(1, b"a")),
            to(&field(3, &weighted)),
            to(&by_header),
            redirect,
        ]
        .concat();
        let configuration = [field(1, b"r"), field(2, &host), field(2, &field(1, b"empty"))].concat();

        let found = |kind, body: &[u8]| {
            let names = clusters_in_routes(kind, &resource(kind, body));
            names.iter().map(|name| name.as_str().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(found(Kind::Route, &configuration), ["a", "b", "c"]);
        assert_eq!(found(Kind::VirtualHost, &host), ["a", "b", "c"]);
        assert_eq!(found(Kind::Cluster, &configuration), [""; 0]);
        assert_eq!(found(Kind::Route, &[0x12, 0x7f, 0xff]), [""; 0], "no message");
    }
}
