//! The transports of xDS.

use serde_json::{Value, json};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transport {
    DeltaAds,
    SotwAds,
    DeltaPerType,
    SotwPerType,
    Rest,
}

impl Transport {
    /// Those over gRPC.
    pub(crate) const ALL: [Self; 4] = [Self::DeltaAds, Self::SotwAds, Self::DeltaPerType, Self::SotwPerType];

    pub(crate) fn is_delta(self) -> bool {
        matches!(self, Self::DeltaAds | Self::DeltaPerType)
    }

    pub(crate) fn is_aggregated(self) -> bool {
        matches!(self, Self::DeltaAds | Self::SotwAds)
    }

    /// The bootstrap under `config/` that makes an Envoy use it.
    pub(crate) fn bootstrap(self) -> &'static str {
        match self {
            Self::DeltaAds => "envoy-delta-ads.yaml",
            Self::SotwAds => "envoy-sotw-ads.yaml",
            Self::DeltaPerType => "envoy-delta-per-type.yaml",
            Self::SotwPerType => "envoy-sotw-per-type.yaml",
            Self::Rest => "envoy-rest.yaml",
        }
    }

    /// Where resources tell their readers to get the resources they refer to.
    pub(crate) fn config_source(self) -> Value {
        if self.is_aggregated() {
            return json!({"resource_api_version": "V3", "ads": {}});
        }
        if self == Self::Rest {
            return json!({
                "resource_api_version": "V3",
                "api_config_source": {
                    "api_type": "REST",
                    "transport_api_version": "V3",
                    "cluster_names": ["deltafan"],
                    "refresh_delay": "0.1s",
                    "request_timeout": "5s",
                },
            });
        }
        json!({
            "resource_api_version": "V3",
            "api_config_source": {
                "api_type": if self.is_delta() { "DELTA_GRPC" } else { "GRPC" },
                "transport_api_version": "V3",
                "set_node_on_first_message_only": true,
                "grpc_services": [{
                    "envoy_grpc": {"cluster_name": "deltafan"},
                    "retry_policy": {"retry_back_off": {"base_interval": "0.25s", "max_interval": "5s"}},
                }],
            },
        })
    }
}
