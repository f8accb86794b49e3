//! Static and dynamic tables of header fields (RFC 7541, section 2.3).

use std::collections::VecDeque;

/// Appendix A. The first entry has index 1.
#[rustfmt::skip]
pub(super) const STATIC: [(&str, &str); 61] = [
    (":authority", ""), (":method", "GET"), (":method", "POST"), (":path", "/"), (":path", "/index.html"),
    (":scheme", "http"), (":scheme", "https"), (":status", "200"), (":status", "204"), (":status", "206"),
    (":status", "304"), (":status", "400"), (":status", "404"), (":status", "500"), ("accept-charset", ""),
    ("accept-encoding", "gzip, deflate"), ("accept-language", ""), ("accept-ranges", ""), ("accept", ""),
    ("access-control-allow-origin", ""), ("age", ""), ("allow", ""), ("authorization", ""), ("cache-control", ""),
    ("content-disposition", ""), ("content-encoding", ""), ("content-language", ""), ("content-length", ""),
    ("content-location", ""), ("content-range", ""), ("content-type", ""), ("cookie", ""), ("date", ""),
    ("etag", ""), ("expect", ""), ("expires", ""), ("from", ""), ("host", ""), ("if-match", ""),
    ("if-modified-since", ""), ("if-none-match", ""), ("if-range", ""), ("if-unmodified-since", ""),
    ("last-modified", ""), ("link", ""), ("location", ""), ("max-forwards", ""), ("proxy-authenticate", ""),
    ("proxy-authorization", ""), ("range", ""), ("referer", ""), ("refresh", ""), ("retry-after", ""),
    ("server", ""), ("set-cookie", ""), ("strict-transport-security", ""), ("transfer-encoding", ""),
    ("user-agent", ""), ("vary", ""), ("via", ""), ("www-authenticate", ""),
];

/// Overhead of a field in bytes (RFC 7541, section 4.1).
const OVERHEAD: usize = 32;

/// Bytes of a field, as tables and limits count it.
pub(crate) const fn size_of(name: &[u8], value: &[u8]) -> usize {
    name.len() + value.len() + OVERHEAD
}

/// Field of the dynamic table: name and value in one allocation.
#[derive(Debug)]
struct Field {
    bytes: Box<[u8]>,
    name_len: usize,
}

impl Field {
    fn parts(&self) -> (&[u8], &[u8]) {
        self.bytes.split_at(self.name_len)
    }

    const fn size(&self) -> usize {
        self.bytes.len() + OVERHEAD
    }
}

/// Dynamic table, newest first, of at most `capacity` bytes.
#[derive(Debug)]
pub(super) struct Dynamic {
    fields: VecDeque<Field>,
    pub(super) size: usize,
    capacity: usize,
}

impl Dynamic {
    pub(super) const fn new(capacity: usize) -> Self {
        Self { fields: VecDeque::new(), size: 0, capacity }
    }

    /// Field by its index into both tables, which count as one.
    pub(super) fn get(&self, index: usize) -> Option<(&[u8], &[u8])> {
        let at = index.checked_sub(1)?;
        match STATIC.get(at) {
            Some((name, value)) => Some((name.as_bytes(), value.as_bytes())),
            None => self.fields.get(at - STATIC.len()).map(Field::parts),
        }
    }

    /// A field larger than the table empties it (RFC 7541, section 4.4).
    pub(super) fn insert(&mut self, name: &[u8], value: &[u8]) {
        let size = size_of(name, value);
        self.evict(self.capacity.saturating_sub(size));
        if size <= self.capacity {
            self.size += size;
            self.fields.push_front(Field { bytes: [name, value].concat().into(), name_len: name.len() });
        }
    }

    pub(super) fn resize(&mut self, capacity: usize) {
        self.capacity = capacity;
        self.evict(capacity);
    }

    fn evict(&mut self, keep: usize) {
        while self.size > keep
            && let Some(field) = self.fields.pop_back()
        {
            self.size -= field.size();
        }
    }
}
