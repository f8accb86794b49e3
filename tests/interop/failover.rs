//! A real Envoy behind two real control planes that take turns.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::fixture::{
    PATIENCE, Pair, Transport, always, eventually, is_direct,
    resources::{CLUSTER, cluster, endpoints},
    skipped,
};

/// Short times: a connection that went dead is noticed within 2 s.
const KEYS: &str = "failover: {after: 1s, return_after: 2s}\n  keepalive: {interval: 1s, timeout: 1s}\n  connect_timeout: 1s";

impl Pair {
    fn clusters(&self) -> Result<BTreeSet<String>, String> {
        Ok(self.envoy.dynamic_clusters()?.active.into_keys().collect())
    }

    fn wait_for_clusters(&self, names: &[&str]) {
        eventually(PATIENCE, &format!("Envoy has {names:?}"), || {
            let found = self.clusters()?;
            if names.iter().all(|name| found.contains(*name)) { Ok(()) } else { Err(format!("{found:?}")) }
        });
    }

    fn wait_for_server(&self, server: f64) {
        eventually(PATIENCE, &format!("the relay uses server {server}"), || {
            let used = self.relay_metric("deltafan_upstream_active_server");
            if used == server { Ok(()) } else { Err(format!("it uses {used}")) }
        });
    }

    /// Sets a cluster with its endpoints at both, or at the second one alone.
    fn put(&self, name: &str, at_first: bool) {
        let source = Transport::DeltaAds.config_source();
        for resource in [endpoints(name, 1), cluster(name, &source, "1s")] {
            self.second.put(&resource);
            if at_first {
                self.first.put(&resource);
            }
        }
    }
}

/// The first one is killed, comes back, is stopped, and goes on.
#[test]
fn r_up_08_envoy_keeps_its_clusters_while_control_planes_take_turns() {
    if is_direct() {
        return skipped("there is no relay");
    }
    let Some(pair) = Pair::start(KEYS, Transport::DeltaAds) else { return };
    pair.put("one", true);
    pair.wait_for_clusters(&["one"]);
    pair.wait_for_server(0.0);

    pair.first.kill();
    pair.wait_for_server(1.0);
    pair.put("two", true);
    pair.wait_for_clusters(&["one", "two"]);
    pair.first.start_again();
    pair.wait_for_server(0.0);

    pair.first.signal("STOP");
    pair.wait_for_server(1.0);
    pair.put("three", false);
    pair.wait_for_clusters(&["one", "two", "three"]);
    // One that only the second has goes once the first one is used again, and nothing else does.
    pair.first.signal("CONT");
    pair.wait_for_server(0.0);
    eventually(PATIENCE, "the cluster of the second goes", || {
        let found = pair.clusters()?;
        assert!(found.contains("one") && found.contains("two"), "{found:?}");
        if found.contains("three") { Err(format!("{found:?}")) } else { Ok(()) }
    });
    always(Duration::from_millis(500), "Envoy has what both have", || {
        let found = pair.clusters()?;
        if found.len() == 2 { Ok(()) } else { Err(format!("{found:?}")) }
    });
    pair.first.delete(CLUSTER, "two");
    eventually(PATIENCE, "the first one is followed", || {
        let found = pair.clusters()?;
        if found.contains("two") { Err(format!("{found:?}")) } else { Ok(()) }
    });
    assert!(pair.relay_metric("deltafan_upstream_events_total{event=\"failback\"}") >= 2.0);
}
