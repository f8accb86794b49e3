//! Names of other resources that a body has: endpoints of a cluster, clusters of routes.
//!
//! The relay reads nothing else of a body. Clients reject a malformed one, not the relay (R-Up-14).

use super::wire::{self, Value, payloads};
use super::{Kind, Name};

const ANY_VALUE: u32 = 2;

/// `eds_cluster_config.service_name` of a cluster, else its own name. `own` is shared if it is that.
pub(super) fn eds_service(kind: Kind, any: &[u8], own: &Name) -> Option<Name> {
    const CLUSTER_NAME: u32 = 1;
    const CLUSTER_TYPE: u32 = 2;
    const CLUSTER_EDS_CONFIG: u32 = 3;
    const EDS: u64 = 3;
    const EDS_SERVICE_NAME: u32 = 2;

    let cluster = payloads(any, ANY_VALUE).last().filter(|_| kind == Kind::Cluster)?;
    let types = wire::fields(cluster).flatten().filter(|field| field.number == CLUSTER_TYPE);
    if types.last()?.value != Value::Varint(EDS) {
        return None;
    }
    let text = |message, number| {
        let text = std::str::from_utf8(payloads(message, number).last()?).ok();
        text.filter(|text| !text.is_empty())
    };
    let config = payloads(cluster, CLUSTER_EDS_CONFIG).last();
    let service = config.and_then(|config| text(config, EDS_SERVICE_NAME));
    let service = service.or_else(|| text(cluster, CLUSTER_NAME))?;
    Some(if service == own.as_str() { own.clone() } else { service.into() })
}

/// Clusters of a RouteConfiguration or a VirtualHost, in order, perhaps repeated: those in `cluster` and
/// `weighted_clusters` of an action. Not those of mirrors, nor those chosen by a header, a plugin or a matcher tree.
pub fn clusters_in_routes(kind: Kind, any: &[u8]) -> Vec<Name> {
    const VIRTUAL_HOSTS: u32 = 2;
    const ROUTES: u32 = 3;
    const ROUTE_ACTION: u32 = 2;
    const CLUSTER: u32 = 1;
    const WEIGHTED_CLUSTERS: u32 = 3;
    const WEIGHTED_CLUSTER: u32 = 1;
    const NAME: u32 = 1;

    let values = payloads(any, ANY_VALUE);
    let hosts: Vec<&[u8]> = match kind {
        Kind::Route => values.flat_map(|value| payloads(value, VIRTUAL_HOSTS)).collect(),
        Kind::VirtualHost => values.collect(),
        _ => return Vec::new(),
    };
    let routes = hosts.into_iter().flat_map(|host| payloads(host, ROUTES));
    let actions = routes.flat_map(|route| payloads(route, ROUTE_ACTION));
    let names = actions.flat_map(|action| {
        let weighted = payloads(action, WEIGHTED_CLUSTERS).flat_map(|all| payloads(all, WEIGHTED_CLUSTER));
        payloads(action, CLUSTER).chain(weighted.flat_map(|one| payloads(one, NAME)))
    });
    names.filter_map(|name| std::str::from_utf8(name).ok()).map(Name::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resource::wire::field;

    #[test]
    fn an_eds_cluster_names_its_endpoints() {
        let (eds, own) = ([0x10, 3], Name::from("web"));
        let cluster = [field(1, b"web"), eds.to_vec()].concat();
        assert_eq!(eds_service(Kind::Cluster, &field(2, &cluster), &own), Some("web".into()));
        let with_service = [cluster, field(3, &field(2, b"web-eds"))].concat();
        assert_eq!(eds_service(Kind::Cluster, &field(2, &with_service), &own), Some("web-eds".into()));
        let strict_dns = [field(1, b"web"), vec![0x10, 1]].concat();
        assert_eq!(eds_service(Kind::Cluster, &field(2, &strict_dns), &own), None);
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
            let names = clusters_in_routes(kind, &field(2, body));
            names.iter().map(|name| name.as_str().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(found(Kind::Route, &configuration), ["a", "b", "c"]);
        assert_eq!(found(Kind::VirtualHost, &host), ["a", "b", "c"]);
        assert_eq!(found(Kind::Cluster, &configuration), [""; 0]);
        assert_eq!(found(Kind::Route, &[0x12, 0x7f, 0xff]), [""; 0], "no message");
    }
}
