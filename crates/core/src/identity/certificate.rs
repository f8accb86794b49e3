//! Names in a certificate that was verified elsewhere.
//!
//! Names above the bounds of an honest certificate are left out, so that they match no rule.

use x509_parser::prelude::{FromDer as _, GeneralName, X509Certificate};
use x509_parser::x509::{AttributeTypeAndValue, X509Name};

use super::Certificate;

const MAX_DNS_NAMES: usize = 100;
/// Bytes of the longest DNS name (RFC 1035, section 2.3.4).
const MAX_DNS_NAME: usize = 255;
const MAX_SUBJECT: usize = 2048;
/// Bytes of the longest SPIFFE ID and trust domain (SPIFFE-ID, section 2.3).
const MAX_SPIFFE_ID: usize = 2048;
const MAX_TRUST_DOMAIN: usize = 255;

/// Attributes with a short form (RFC 4514, section 3).
const SHORT: [(&str, &str); 9] = [
    ("2.5.4.3", "CN"),
    ("2.5.4.7", "L"),
    ("2.5.4.8", "ST"),
    ("2.5.4.10", "O"),
    ("2.5.4.11", "OU"),
    ("2.5.4.6", "C"),
    ("2.5.4.9", "STREET"),
    ("0.9.2342.19200300.100.1.25", "DC"),
    ("0.9.2342.19200300.100.1.1", "UID"),
];

impl Certificate {
    /// `None` if any part cannot be read: half of a certificate identifies nobody.
    pub fn from_der(der: &[u8]) -> Option<Self> {
        let (rest, certificate) = X509Certificate::from_der(der).ok()?;
        if !rest.is_empty() {
            return None;
        }
        let mut read = Self { subject: subject(certificate.subject()), ..Self::default() };
        let Some(names) = certificate.subject_alternative_name().ok()? else { return Some(read) };
        let names = &names.value.general_names;
        let mut uris = names.iter().filter_map(|name| match name {
            GeneralName::URI(uri) => Some(*uri),
            _ => None,
        });
        // With a second URI a certificate is no SVID (X509-SVID, section 2).
        if let (Some(uri), None) = (uris.next(), uris.next()) {
            read.spiffe_id = is_spiffe_id(uri).then(|| uri.into());
        }
        read.dns_names = names
            .iter()
            .filter_map(|name| match name {
                GeneralName::DNSName(name) if (1..=MAX_DNS_NAME).contains(&name.len()) => {
                    Some((*name).into())
                }
                _ => None,
            })
            .take(MAX_DNS_NAMES)
            .collect();
        Some(read)
    }
}

/// Whether a text is a SPIFFE ID (SPIFFE-ID, section 2).
pub fn is_spiffe_id(text: &str) -> bool {
    let Some(rest) = text.strip_prefix("spiffe://").filter(|_| text.len() <= MAX_SPIFFE_ID) else {
        return false;
    };
    let (domain, path) = match rest.find('/') {
        Some(at) => rest.split_at(at),
        None => (rest, ""),
    };
    let in_domain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b".-_".contains(&byte);
    let in_path = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
    let is_segment = |segment: &str| {
        !segment.is_empty() && segment != "." && segment != ".." && segment.bytes().all(in_path)
    };
    (1..=MAX_TRUST_DOMAIN).contains(&domain.len())
        && domain.bytes().all(in_domain)
        && (path.is_empty() || path[1..].split('/').all(is_segment))
}

/// As of RFC 4514: the last part first. Empty if too long.
fn subject(name: &X509Name<'_>) -> Box<str> {
    let parts: Vec<_> = name.iter_rdn().collect();
    let mut text = String::new();
    for (at, part) in parts.iter().rev().enumerate() {
        for (of, attribute) in part.iter().enumerate() {
            text.push_str(match (at, of) {
                (0, 0) => "",
                (_, 0) => ",",
                _ => "+",
            });
            write_attribute(attribute, &mut text);
            if text.len() > MAX_SUBJECT {
                return Box::default();
            }
        }
    }
    text.into()
}

fn write_attribute(attribute: &AttributeTypeAndValue<'_>, text: &mut String) {
    let of = attribute.attr_type().to_id_string();
    let short = SHORT.iter().find(|(id, _)| *id == of).map(|(_, short)| *short);
    text.push_str(short.unwrap_or(&of));
    text.push('=');
    match attribute.as_str() {
        Ok(value) if short.is_some() => escape(value, text),
        // RFC 4514, section 2.4: without a short type name, or text, the bytes.
        _ => {
            text.push('#');
            let value = attribute.attr_value();
            let bytes = x509_parser::asn1_rs::ToDer::to_der_vec(value).unwrap_or_default();
            bytes.iter().take(MAX_SUBJECT).for_each(|byte| text.push_str(&format!("{byte:02x}")));
        }
    }
}

/// RFC 4514, section 2.4.
fn escape(value: &str, text: &mut String) {
    let last = value.chars().count().saturating_sub(1);
    for (at, c) in value.chars().enumerate().take(MAX_SUBJECT + 1) {
        match c {
            '\0' => text.push_str("\\00"),
            '"' | '+' | ',' | ';' | '<' | '>' | '\\' => text.extend(['\\', c]),
            '#' | ' ' if at == 0 => text.extend(['\\', c]),
            ' ' if at == last => text.push_str("\\ "),
            // A control character would break a line of the log.
            c if c.is_control() => {
                let mut utf8 = [0; 4];
                c.encode_utf8(&mut utf8).bytes().for_each(|byte| text.push_str(&format!("\\{byte:02x}")));
            }
            c => text.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rcgen::{CertificateParams, DnType, KeyPair, SanType};

    use super::*;

    fn made(uris: &[&str], dns: &[&str], names: &[(DnType, &str)]) -> Vec<u8> {
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        names.iter().for_each(|(of, value)| params.distinguished_name.push(of.clone(), *value));
        let uris = uris.iter().map(|uri| SanType::URI((*uri).try_into().unwrap()));
        let dns = dns.iter().map(|name| SanType::DnsName((*name).try_into().unwrap()));
        params.subject_alt_names = uris.chain(dns).collect();
        params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().to_vec()
    }

    #[test]
    fn names_are_read_and_the_last_part_of_the_subject_comes_first() {
        let of = [(DnType::OrganizationName, "Example, Inc."), (DnType::CommonName, "#1 \"envoy\" ")];
        let der = made(&["spiffe://example.org/ns/a/sa/b"], &["a.example", "*.b.example"], &of);
        let read = Certificate::from_der(&der).unwrap();
        assert_eq!(read.spiffe_id.as_deref(), Some("spiffe://example.org/ns/a/sa/b"));
        assert_eq!(read.dns_names, ["a.example", "*.b.example"].map(Box::from));
        assert_eq!(&*read.subject, r#"CN=\#1 \"envoy\"\ ,O=Example\, Inc."#);
    }

    #[test]
    fn two_uris_or_one_that_is_none_are_no_spiffe_id() {
        let id = |uris: &[&str]| Certificate::from_der(&made(uris, &[], &[])).unwrap().spiffe_id;
        assert_eq!(id(&["spiffe://a/b", "spiffe://a/c"]), None);
        assert_eq!(id(&["spiffe://a/b", "https://a"]), None);
        assert_eq!(id(&["https://a/b"]), None);
        assert_eq!(id(&[]), None);
        assert_eq!(id(&["spiffe://a"]).as_deref(), Some("spiffe://a"));
    }

    #[test]
    fn the_rules_of_spiffe_ids_are_kept() {
        let long = format!("spiffe://{}/a", "d".repeat(256));
        for wrong in [
            "",
            "spiffe://",
            "spiffe:///a",
            "SPIFFE://a/b",
            "spiffe://A/b",
            "spiffe://a/",
            "spiffe://a//b",
            "spiffe://a/./b",
            "spiffe://a/..",
            "spiffe://a/b?c",
            "spiffe://a/b#c",
            "spiffe://u@a/b",
            "spiffe://a:1/b",
            "spiffe://a/%41",
            "spiffe://a/b c",
            " spiffe://a/b",
            "spiffe://a/ü",
            &long,
        ] {
            assert!(!is_spiffe_id(wrong), "{wrong}");
        }
        for right in ["spiffe://a", "spiffe://a.b-c_1/D/e.f-g_2", "spiffe://a/...", "spiffe://1.2.3.4/x"] {
            assert!(is_spiffe_id(right), "{right}");
        }
    }

    #[test]
    fn a_subject_that_is_too_long_matches_nothing() {
        let long = "x".repeat(MAX_SUBJECT);
        let der = made(&[], &[], &[(DnType::CommonName, &long)]);
        assert_eq!(&*Certificate::from_der(&der).unwrap().subject, "");
    }

    proptest! {
        #[test]
        fn bytes_are_read_or_not_but_nothing_panics(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
            _ = Certificate::from_der(&bytes);
        }

        /// Closer to a certificate than noise is.
        #[test]
        fn a_certificate_with_bytes_changed_does_not_panic_either(
            changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        ) {
            static DER: std::sync::LazyLock<Vec<u8>> = std::sync::LazyLock::new(|| {
                made(&["spiffe://a/b"], &["c.example"], &[(DnType::CommonName, "d"), (DnType::OrganizationName, "e")])
            });
            let mut der = DER.clone();
            for (at, byte) in changes {
                let at = at.index(der.len());
                der[at] = byte;
            }
            if let Some(read) = Certificate::from_der(&der) {
                prop_assert!(read.subject.len() <= MAX_SUBJECT && read.dns_names.len() <= MAX_DNS_NAMES);
                prop_assert!(read.spiffe_id.is_none_or(|id| is_spiffe_id(&id)));
            }
        }
    }
}
