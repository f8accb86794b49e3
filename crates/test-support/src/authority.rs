//! An authority for certificates that are made on the fly.

use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CertifiedIssuer, DnType,
    ExtendedKeyUsagePurpose, IsCa, KeyIdMethod, KeyPair, KeyUsagePurpose, RevokedCertParams, SanType,
    SerialNumber, date_time_ymd,
};

/// One that certifies whatever it is asked to.
pub struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A certificate and its key, in PEM.
#[derive(Clone, Debug)]
pub struct Leaf {
    pub certificate: String,
    pub key: String,
    serial: u64,
}

/// Purpose of a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// Servers and clients, for centuries.
    Any,
    /// Clients only.
    Client,
    /// Nothing any more since 2020.
    Expired,
}

impl Authority {
    pub fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    /// Its own certificate, in PEM.
    pub fn certificate(&self) -> String {
        self.0.pem()
    }

    /// A certificate for names of DNS, addresses and URIs.
    pub fn certify(&self, names: &[&str], usage: Use) -> Leaf {
        let (uris, others): (Vec<&str>, Vec<&str>) = names.iter().partition(|name| name.contains("://"));
        let others: Vec<String> = others.into_iter().map(str::to_owned).collect();
        let mut params = CertificateParams::new(others).unwrap();
        let uris = uris.into_iter().map(|uri| SanType::URI(uri.try_into().unwrap()));
        params.subject_alt_names.extend(uris);
        let serial = rand::random::<u64>() >> 1;
        params.serial_number = Some(SerialNumber::from(serial));
        params.extended_key_usages = match usage {
            Use::Any | Use::Expired => {
                vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth]
            }
            Use::Client => vec![ExtendedKeyUsagePurpose::ClientAuth],
        };
        if usage == Use::Expired {
            params.not_before = date_time_ymd(2019, 1, 1);
            params.not_after = date_time_ymd(2020, 1, 1);
        }
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.0).unwrap();
        Leaf { certificate: certificate.pem(), key: key.serialize_pem(), serial }
    }

    /// The list of what it has taken back, in PEM.
    pub fn revoke(&self, leaves: &[&Leaf]) -> String {
        let revoked = |leaf: &&Leaf| RevokedCertParams {
            serial_number: SerialNumber::from(leaf.serial),
            revocation_time: date_time_ymd(2024, 1, 1),
            reason_code: None,
            invalidity_date: None,
        };
        let list = CertificateRevocationListParams {
            this_update: date_time_ymd(2024, 1, 1),
            next_update: date_time_ymd(2100, 1, 1),
            crl_number: SerialNumber::from(1),
            issuing_distribution_point: None,
            revoked_certs: leaves.iter().map(revoked).collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        list.signed_by(&self.0).unwrap().pem().unwrap()
    }
}

/// Puts a file in its place, whole or not at all.
pub fn put(dir: &Path, name: &str, text: &str) -> PathBuf {
    let (path, hidden) = (dir.join(name), dir.join(format!(".{name}.new")));
    std::fs::write(&hidden, text).unwrap();
    std::fs::rename(hidden, &path).unwrap();
    path
}
