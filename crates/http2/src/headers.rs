//! Header blocks of requests: validity of their fields (RFC 9113, sections 8.1 to 8.3).

use http::header::{HeaderMap, HeaderName, HeaderValue};
use http::uri::{PathAndQuery, Scheme};
use http::{Method, Request, Uri, Version, request};

use super::hpack;

/// Error in a header block, which concerns its stream only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HeadError {
    Malformed,
    TooLarge,
}

/// A request without its body.
#[derive(Debug)]
pub(super) struct RequestHead {
    pub(super) parts: request::Parts,
    /// Bytes of the body to come, if `content-length` said.
    pub(super) content_length: Option<u64>,
    /// Size of the block as HPACK counts it.
    pub(super) size: usize,
}

/// Fields of one header block, filled as they are decoded.
#[derive(Debug, Default)]
pub(super) struct Fields {
    /// Bytes still allowed, as HPACK counts them.
    room: usize,
    size: usize,
    method: Option<Method>,
    scheme: bool,
    path: Option<PathAndQuery>,
    authority: Option<HeaderValue>,
    headers: HeaderMap,
    /// Whether a regular field came: no pseudo-header may follow.
    regular: bool,
    pseudo: bool,
    error: Option<HeadError>,
}

impl Fields {
    pub(super) fn new(room: usize) -> Self {
        Self { room, ..Self::default() }
    }

    /// Marks the block as malformed, whatever its fields are.
    pub(super) fn refuse(&mut self) {
        self.error.get_or_insert(HeadError::Malformed);
    }

    /// Adds a field. After an error nothing is kept.
    pub(super) fn add(&mut self, name: &[u8], value: &[u8]) {
        if self.error.is_none() {
            self.error = self.try_add(name, value).err();
        }
    }

    fn try_add(&mut self, name: &[u8], value: &[u8]) -> Result<(), HeadError> {
        let size = hpack::size_of(name, value);
        self.room = self.room.checked_sub(size).ok_or(HeadError::TooLarge)?;
        self.size += size;
        if name.first() == Some(&b':') {
            self.pseudo = true;
            let is_first = self.add_pseudo(name, value).map_err(|_| HeadError::Malformed)?;
            return if is_first && !self.regular { Ok(()) } else { Err(HeadError::Malformed) };
        }
        self.regular = true;
        // Upper case is malformed too.
        let name = HeaderName::from_lowercase(name).map_err(|_| HeadError::Malformed)?;
        let value = HeaderValue::from_bytes(value).map_err(|_| HeadError::Malformed)?;
        let of_connection = ["connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade"]
            .contains(&name.as_str());
        if of_connection || (name == "te" && value != "trailers") {
            return Err(HeadError::Malformed);
        }
        self.headers.try_append(name, value).map_err(|_| HeadError::TooLarge)?;
        Ok(())
    }

    /// Adds a pseudo-header. Returns whether it is a known one, and the first of its name.
    fn add_pseudo(&mut self, name: &[u8], value: &[u8]) -> http::Result<bool> {
        Ok(match name {
            b":method" => self.method.replace(Method::from_bytes(value)?).is_none(),
            b":scheme" => {
                // The value of `:scheme` is ignored.
                Scheme::try_from(value)?;
                !std::mem::replace(&mut self.scheme, true)
            }
            b":path" => self.path.replace(PathAndQuery::try_from(value)?).is_none(),
            // Any value is accepted and ignored: gRPC clients on Unix sockets send the path of a file.
            b":authority" => self.authority.replace(HeaderValue::from_bytes(value)?).is_none(),
            _ => false,
        })
    }

    /// The finished request.
    pub(super) fn into_request(self) -> Result<RequestHead, HeadError> {
        if let Some(error) = self.error {
            return Err(error);
        }
        let method = self.method.ok_or(HeadError::Malformed)?;
        let uri = match (self.scheme, self.path) {
            (true, Some(path)) if method != Method::CONNECT => Uri::from(path),
            // CONNECT has neither scheme nor path (RFC 9113, section 8.5), and no service here has that method.
            (false, None) if method == Method::CONNECT => Uri::default(),
            _ => return Err(HeadError::Malformed),
        };
        let mut content_length = None;
        for length in self.headers.get_all(http::header::CONTENT_LENGTH) {
            // Digits only: the standard library would accept a sign.
            let digits = length.to_str().ok().filter(|text| !text.starts_with('+'));
            let length: u64 = digits.and_then(|text| text.parse().ok()).ok_or(HeadError::Malformed)?;
            // Repeated equal values count as one (RFC 9110, section 8.6).
            if content_length.replace(length).is_some_and(|other| other != length) {
                return Err(HeadError::Malformed);
            }
        }
        let (mut parts, ()) = Request::new(()).into_parts();
        parts.method = method;
        parts.uri = uri;
        parts.version = Version::HTTP_2;
        parts.headers = self.headers;
        if let Some(authority) = self.authority {
            // `host` is ignored beside `:authority` (RFC 9113, section 8.3.1).
            parts.headers.insert(http::header::HOST, authority);
        }
        Ok(RequestHead { parts, content_length, size: self.size })
    }

    /// Checks trailers of a request. They are dropped, but must be well-formed.
    pub(super) const fn check_trailers(&self) -> Result<(), HeadError> {
        match self.error {
            Some(error) => Err(error),
            None if self.pseudo => Err(HeadError::Malformed),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: [(&str, &str); 5] = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", "/a/b"),
        (":authority", "relay"),
        ("te", "trailers"),
    ];

    fn request(fields: &[(&str, &str)]) -> Result<RequestHead, HeadError> {
        let mut head = Fields::new(1000);
        fields.iter().for_each(|(name, value)| head.add(name.as_bytes(), value.as_bytes()));
        head.into_request()
    }

    #[test]
    fn a_good_head_is_a_request() {
        let head =
            request(&[&GOOD[..], &[("content-length", "7"), ("a", "1"), ("a", "2")]].concat()).expect("good");
        assert_eq!(head.parts.method, Method::POST);
        assert_eq!(head.parts.uri.path(), "/a/b");
        assert_eq!(head.parts.headers["host"], "relay");
        assert_eq!(head.parts.headers.get_all("a").iter().count(), 2);
        assert_eq!(head.content_length, Some(7));
    }

    #[test]
    fn a_malformed_head_is_none() {
        const CONNECT: (&str, &str) = (":method", "CONNECT");
        let faults: [(&[(&str, &str)], &str); 19] = [
            (&GOOD[1..], "no method"),
            (&GOOD[..2], "no path"),
            (&[GOOD[0], GOOD[2]], "no scheme"),
            (&[GOOD[0], GOOD[1], (":path", "")], "an empty path"),
            (&[GOOD[0], GOOD[1], (":path", "a")], "a path that is none"),
            (&[GOOD[0], (":scheme", "h t"), GOOD[2]], "a scheme that is none"),
            (&[CONNECT, GOOD[1], GOOD[2], GOOD[3]], "CONNECT with a scheme and a path"),
            (&[CONNECT, GOOD[2], GOOD[3]], "CONNECT with a path"),
            (&[GOOD[0], GOOD[0], GOOD[1], GOOD[2]], "a pseudo-header twice"),
            (&[GOOD[0], GOOD[1], ("a", "b"), GOOD[2]], "a pseudo-header behind a field"),
            (&[GOOD[0], GOOD[1], GOOD[2], (":status", "200")], "a pseudo-header of responses"),
            (&[GOOD[0], GOOD[1], GOOD[2], ("Upper", "1")], "upper case"),
            (&[GOOD[0], GOOD[1], GOOD[2], ("connection", "close")], "a field of the connection"),
            (&[GOOD[0], GOOD[1], GOOD[2], ("transfer-encoding", "chunked")], "a field of HTTP/1"),
            (&[GOOD[0], GOOD[1], GOOD[2], ("te", "gzip")], "te with anything but trailers"),
            (&[GOOD[0], GOOD[1], GOOD[2], ("a", "b\r\nc: d")], "a line break in a value"),
            (&[GOOD[0], GOOD[1], GOOD[2], ("a b", "c")], "a space in a name"),
            (&[GOOD[0], GOOD[1], GOOD[2], ("content-length", "-1")], "a length that is none"),
            (&[GOOD[0], GOOD[1], GOOD[2], ("content-length", "1"), ("content-length", "2")], "two lengths"),
        ];
        for (fields, what) in faults {
            assert_eq!(request(fields).map(|_| ()), Err(HeadError::Malformed), "{what}");
        }
    }

    #[test]
    fn an_authority_takes_the_place_of_host_whatever_it_is() {
        for authority in ["/run/relay.sock", "%2Frun%2Frelay.sock", "localhost", ""] {
            let fields = [GOOD[0], GOOD[1], GOOD[2], (":authority", authority), ("host", "other")];
            assert_eq!(request(&fields).expect("good").parts.headers["host"], authority);
        }
    }

    #[test]
    fn a_request_without_a_path_is_connect() {
        let head = request(&[(":method", "CONNECT"), (":authority", "relay:1")]).expect("well-formed");
        assert_eq!(head.parts.method, Method::CONNECT);
    }

    #[test]
    fn equal_lengths_count_as_one() {
        let lengths = [("content-length", "7"), ("content-length", "7")];
        assert_eq!(request(&[&GOOD[..], &lengths[..]].concat()).expect("good").content_length, Some(7));
    }

    #[test]
    fn a_head_over_the_limit_is_too_large() {
        let value = "x".repeat(1000);
        assert_eq!(request(&[&GOOD[..], &[("a", &value)]].concat()).map(|_| ()), Err(HeadError::TooLarge));
        // Each field costs 32 bytes, however short it is.
        let many = vec![("a", ""); 40];
        assert_eq!(request(&[&GOOD[..], &many[..]].concat()).map(|_| ()), Err(HeadError::TooLarge));
    }

    #[test]
    fn trailers_have_no_pseudo_headers() {
        let mut trailers = Fields::new(100);
        trailers.add(b"a", b"b");
        assert_eq!(trailers.check_trailers(), Ok(()));
        trailers.add(b":path", b"/");
        assert_eq!(trailers.check_trailers(), Err(HeadError::Malformed));
    }
}
