//! Texts of rejections without the keys and passwords that they may quote.
//!
//! A client quotes the rejected message as JSON or text with field names, so the text is cut at the
//! name of a hidden field.

use std::borrow::Cow;
use std::sync::LazyLock;

use regex::Regex;

/// Parts of names of headers with credentials.
pub const CREDENTIAL_HEADERS: [&str; 7] =
    ["authorization", "cookie", "token", "secret", "password", "api-key", "apikey"];

/// Hidden fields, with `_` before each word that JSON begins with a capital.
const HIDDEN: &[&str] = &[
    "access_token",
    "auth_password",
    "auth_username",
    "authorization_token",
    "backend_token",
    "context_extensions",
    "credentials",
    "credentials_data_source",
    "downstream_auth_password",
    "downstream_auth_passwords",
    "downstream_auth_username",
    "google_refresh_token",
    "json_key",
    "keys",
    "password",
    "pkcs12",
    "private_key",
    "private_key_provider",
    "secret",
    "secret_access_key",
    "secret_data",
    "secrets",
    "session_token",
    "token",
    "users",
    "web_identity_token_data_source",
];

const CUT: &str = "… (cut: what follows may quote a hidden value; see the log of the client)";

static QUOTED: LazyLock<Option<Regex>> = LazyLock::new(|| {
    let fields = HIDDEN.join("|").replace('_', "_?");
    let headers = CREDENTIAL_HEADERS.join("|");
    let any = format!(
        r#"(?i)\b(?:{fields})"?\s*(?::\s*["{{\[<]|[{{<])|TypedStruct["\]]*\s*[:{{<,]|\bkey"?\s*:\s*"[^"]*(?:{headers})"#
    );
    Regex::new(&any).ok()
});

/// The text up to the first field that may hold a hidden value.
pub fn shown_rejection(text: &str) -> Cow<'_, str> {
    match QUOTED.as_ref().map(|quoted| quoted.find(text)) {
        Some(None) => text.into(),
        Some(Some(found)) => format!("{}{CUT}", &text[..found.start()]).into(),
        None => CUT.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_cut_where_it_quotes_a_credential() {
        for (text, shown) in [
            ("Error adding cluster a: no such token", None),
            ("no tls_certificate: private_key is missing", None),
            ("token_uri: \"x\"", None),
            (
                r#"bad: header { key: "x-a" value: "1" } header { key: "Authorization" value: "PRIVATE" }"#,
                Some(r#"bad: header { key: "x-a" value: "1" } header { "#),
            ),
            (r#"bad: {"header":{"key":"x-api-key","value":"PRIVATE"}}"#, Some(r#"bad: {"header":{""#)),
            (r#"bad: access_token: "PRIVATE""#, Some("bad: ")),
            (r#"bad: {"googleRefreshToken": "PRIVATE"}"#, Some(r#"bad: {""#)),
            (
                "bad: [type.googleapis.com/xds.type.v3.TypedStruct] {\n value { fields {",
                Some("bad: [type.googleapis.com/xds.type.v3."),
            ),
            (
                r#"bad: {"@type":"t/udpa.type.v1.TypedStruct","value":{"key":"PRIVATE"}}"#,
                Some(r#"bad: {"@type":"t/udpa.type.v1."#),
            ),
        ] {
            let expected = shown.map_or_else(|| text.to_owned(), |shown| format!("{shown}{CUT}"));
            assert_eq!(shown_rejection(text), expected);
        }
    }
}
