//! Files that a configuration names: descriptor sets and TLS files.

use std::path::PathBuf;

use anyhow::Context as _;

use crate::config::{self, Config, ListenerTls};
use crate::descriptors::{DescriptorSet, Descriptors};
use crate::tls::client::ClientFiles;
use crate::tls::files::{Files, LoadError};

/// Key of a control plane's TLS files, in messages and metrics. A single one has no number.
pub(super) fn upstream_tls_key(at: usize, is_choice: bool) -> String {
    if is_choice { format!("upstream.servers[{at}].tls") } else { "upstream.servers[].tls".to_owned() }
}

/// Loads the descriptors for REST-JSON: the relay's own, and those of the configured files.
///
/// # Errors
///
/// A file cannot be read, is no descriptor set, or contradicts the others.
pub fn load_descriptors(config: &config::Rest) -> anyhow::Result<Descriptors> {
    let read = |path: &PathBuf| {
        let origin = path.display().to_string();
        let bytes = std::fs::read(path).with_context(|| format!("cannot read {origin}"))?;
        Ok(DescriptorSet { origin, bytes })
    };
    let sets: anyhow::Result<Vec<_>> = config.descriptor_sets.iter().map(read).collect();
    sets.and_then(|sets| Ok(Descriptors::with(&sets)?)).context("rest.descriptor_sets")
}

/// Reads the files of all `tls` sections as a start would.
///
/// # Errors
///
/// First unusable file, with its key.
pub fn check_tls(config: &Config) -> anyhow::Result<()> {
    let servers = &config.upstream.servers;
    for (at, server) in servers.iter().enumerate() {
        if let Some(files) = tls_upstream(server)? {
            files.read().with_context(|| upstream_tls_key(at, servers.len() > 1))?;
        }
    }
    for (at, listener) in config.downstream.listeners.iter().enumerate() {
        let Some((of, files)) = tls_of(at, listener) else { continue };
        let loaded = Files::read(&files.paths()).and_then(|read| files.load(&read));
        loaded.context(of)?;
    }
    Ok(())
}

pub(super) fn tls_upstream(server: &config::Server) -> Result<Option<ClientFiles>, LoadError> {
    let files = || {
        let options = server.tls.clone().map(config::ServerTls::options);
        ClientFiles::new(options.unwrap_or_default(), server.uri.as_uri())
    };
    server.uri.is_tls().then(files).transpose()
}

/// TLS files of a listener, with their key.
pub(super) fn tls_of(at: usize, listener: &config::Listener) -> Option<(String, ListenerTls)> {
    Some((format!("downstream.listeners[{at}].tls"), listener.tls.clone()?))
}
