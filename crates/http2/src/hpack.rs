//! Header compression (RFC 7541): decodes everything that peers may send, encodes only what they
//! must accept.
//!
//! The decoder's memory is bounded by [`TABLE`]; the caller bounds the decoded size of a block,
//! field by field. The encoder keeps no table: responses have two or three fields.
//!
//! The Huffman code is canonical: codes of one length are consecutive, in the order of their symbols, and
//! follow those of the next shorter length. So the lengths define it.

use std::collections::VecDeque;
use std::sync::LazyLock;

/// Bytes of the dynamic table that peers may use: the protocol's default, which needs no SETTINGS.
const TABLE: usize = 4096;

/// Block that cannot be decoded. It ends the connection, because later blocks build upon it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MalformedError;

/// Decoder of the header blocks of one connection, in order, with its dynamic table.
#[derive(Debug)]
pub(super) struct Decoder {
    /// Newest first.
    fields: VecDeque<Field>,
    size: usize,
    capacity: usize,
}

impl Default for Decoder {
    fn default() -> Self {
        Self { fields: VecDeque::new(), size: 0, capacity: TABLE }
    }
}

impl Decoder {
    /// Calls back with the fields of a block in order.
    pub(super) fn decode(
        &mut self,
        block: &[u8],
        mut tell: impl FnMut(&[u8], &[u8]),
    ) -> Result<(), MalformedError> {
        let mut rest = block;
        let (mut name, mut value) = (Vec::new(), Vec::new());
        let mut resizable = true;
        while let Some(&first) = rest.first() {
            if first & 0xe0 == 0x20 {
                // Allowed only before the first field (RFC 7541, section 4.2).
                let size = integer(&mut rest, 5)?;
                if !resizable || size > TABLE {
                    return Err(MalformedError);
                }
                self.resize(size);
                continue;
            }
            resizable = false;
            if first & 0x80 != 0 {
                let (name, value) = self.get(integer(&mut rest, 7)?).ok_or(MalformedError)?;
                tell(name, value);
                continue;
            }
            let indexed = first & 0x40 != 0;
            let index = integer(&mut rest, if indexed { 6 } else { 4 })?;
            name.clear();
            value.clear();
            if index == 0 {
                string(&mut rest, &mut name)?;
            } else {
                name.extend_from_slice(self.get(index).ok_or(MalformedError)?.0);
            }
            string(&mut rest, &mut value)?;
            tell(&name, &value);
            if indexed {
                self.insert(&name, &value);
            }
        }
        Ok(())
    }
}

/// Integer with a prefix of `bits` bits (RFC 7541, section 5.1).
fn integer(rest: &mut &[u8], prefix: u32) -> Result<usize, MalformedError> {
    let mut next = || rest.split_off_first().copied().ok_or(MalformedError);
    let mask = (1_usize << prefix) - 1;
    let mut value = usize::from(next()?) & mask;
    if value < mask {
        return Ok(value);
    }
    // No number here exceeds the length of a block, which three more bytes can count.
    for shift in [0, 7, 14] {
        let byte = next()?;
        value += usize::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err(MalformedError)
}

/// String literal (RFC 7541, section 5.2), appended to `out`.
fn string(rest: &mut &[u8], out: &mut Vec<u8>) -> Result<(), MalformedError> {
    let coded = rest.first().ok_or(MalformedError)? & 0x80 != 0;
    let len = integer(rest, 7)?;
    let bytes = rest.split_off(..len).ok_or(MalformedError)?;
    if coded {
        return decode_huffman(bytes, out);
    }
    out.extend_from_slice(bytes);
    Ok(())
}

/// Appends a field to a block, without table or Huffman code.
pub(super) fn encode(name: &str, value: &[u8], block: &mut Vec<u8>) {
    if let Some(at) = STATIC.iter().position(|field| field.0 == name && field.1.as_bytes() == value) {
        return put_integer(block, 0x80, 7, at + 1);
    }
    match STATIC.iter().position(|field| field.0 == name) {
        Some(at) => put_integer(block, 0, 4, at + 1),
        None => {
            block.push(0);
            put_integer(block, 0, 7, name.len());
            block.extend_from_slice(name.as_bytes());
        }
    }
    put_integer(block, 0, 7, value.len());
    block.extend_from_slice(value);
}

/// Announces that the encoder keeps no table, for peers that want a smaller one than the default
/// (RFC 7541, section 4.2).
pub(super) fn encode_no_table(block: &mut Vec<u8>) {
    put_integer(block, 0x20, 5, 0);
}

fn put_integer(block: &mut Vec<u8>, pattern: u8, prefix: u32, mut value: usize) {
    let mask = (1_usize << prefix) - 1;
    if value < mask {
        return block.push(pattern | value as u8);
    }
    block.push(pattern | mask as u8);
    value -= mask;
    while value >= 0x80 {
        block.push(value as u8 | 0x80);
        value >>= 7;
    }
    block.push(value as u8);
}

/// Appendix A. The first entry has index 1.
#[rustfmt::skip]
const STATIC: [(&str, &str); 61] = [
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

impl Decoder {
    /// Field by its index into both tables, which count as one.
    fn get(&self, index: usize) -> Option<(&[u8], &[u8])> {
        let at = index.checked_sub(1)?;
        match STATIC.get(at) {
            Some((name, value)) => Some((name.as_bytes(), value.as_bytes())),
            None => self.fields.get(at - STATIC.len()).map(Field::parts),
        }
    }

    /// A field larger than the table empties it (RFC 7541, section 4.4).
    fn insert(&mut self, name: &[u8], value: &[u8]) {
        let size = size_of(name, value);
        self.evict(self.capacity.saturating_sub(size));
        if size <= self.capacity {
            self.size += size;
            self.fields.push_front(Field { bytes: [name, value].concat().into(), name_len: name.len() });
        }
    }

    fn resize(&mut self, capacity: usize) {
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

/// Bits of each symbol's code. EOS, the 257th symbol, has the last code of 30 bits, all ones.
#[rustfmt::skip]
const LENGTHS: [u8; 256] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 28,
    6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6, 5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10,
    13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6,
    15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5, 6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28,
    20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23, 24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24,
    22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23, 21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23,
    26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25, 19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27,
    20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23, 26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26,
];
const LONGEST: usize = 30;

/// Decoding table: per length, where its codes begin and which symbols they stand for.
struct Decoding {
    /// First code by number of bits, with the index of its symbol in `symbols`; one entry more for the end.
    first: [(u32, usize); LONGEST + 2],
    /// Symbols in the order of their codes.
    symbols: Vec<u8>,
}

static DECODING: LazyLock<Decoding> = LazyLock::new(|| {
    let mut decoding = Decoding { first: [(0, 0); LONGEST + 2], symbols: Vec::with_capacity(256) };
    let mut code = 0;
    for length in 1..=LONGEST + 1 {
        code <<= 1;
        let at = decoding.symbols.len();
        decoding.first[length] = (code, at);
        let symbols = (0..=u8::MAX).filter(|symbol| usize::from(LENGTHS[usize::from(*symbol)]) == length);
        decoding.symbols.extend(symbols);
        code += (decoding.symbols.len() - at) as u32;
    }
    decoding
});

/// Decodes a string, appended to `out`.
fn decode_huffman(bytes: &[u8], out: &mut Vec<u8>) -> Result<(), MalformedError> {
    let decoding = &*DECODING;
    let (mut code, mut length) = (0_u32, 0_usize);
    for byte in bytes {
        for bit in (0..8).rev() {
            code = code << 1 | u32::from(byte >> bit & 1);
            length += 1;
            if length > LONGEST {
                return Err(MalformedError);
            }
            let ((first, at), (_, end)) = (decoding.first[length], decoding.first[length + 1]);
            // Below `first` no code of this length can be: it would have been found as a shorter one.
            if let Some(symbol) = decoding.symbols[at..end].get((code - first) as usize) {
                out.push(*symbol);
                (code, length) = (0, 0);
            }
        }
    }
    // Padded with the start of EOS, by less than a byte.
    let padding = (1 << length) - 1;
    if length < 8 && code == padding { Ok(()) } else { Err(MalformedError) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    type Fields = Vec<(Vec<u8>, Vec<u8>)>;

    fn decode(decoder: &mut Decoder, block: &[u8]) -> Result<Fields, MalformedError> {
        let mut fields = Vec::new();
        decoder.decode(block, |name, value| fields.push((name.to_vec(), value.to_vec()))).map(|()| fields)
    }

    fn fields(expected: &[(&str, &str)]) -> Result<Fields, MalformedError> {
        Ok(expected
            .iter()
            .map(|(name, value)| (name.as_bytes().to_vec(), value.as_bytes().to_vec()))
            .collect())
    }

    fn hex(text: &str) -> Vec<u8> {
        let digits: String = text.split_whitespace().collect();
        (0..digits.len())
            .step_by(2)
            .map(|at| u8::from_str_radix(&digits[at..at + 2], 16).expect("hex"))
            .collect()
    }

    #[test]
    fn the_requests_of_the_rfc() {
        // RFC 7541, C.4: three requests on one connection, with Huffman codes.
        let mut decoder = Decoder::default();
        let start =
            [(":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "www.example.com")];
        assert_eq!(decode(&mut decoder, &hex("8286 8441 8cf1 e3c2 e5f2 3a6b a0ab 90f4 ff")), fields(&start));
        let second = [&start[..], &[("cache-control", "no-cache")]].concat();
        assert_eq!(decode(&mut decoder, &hex("8286 84be 5886 a8eb 1064 9cbf")), fields(&second));
        let third = [
            (":method", "GET"),
            (":scheme", "https"),
            (":path", "/index.html"),
            (":authority", "www.example.com"),
            ("custom-key", "custom-value"),
        ];
        let block = hex("8287 85bf 4088 25a8 49e9 5ba9 7d7f 8925 a849 e95b b8e8 b4bf");
        assert_eq!(decode(&mut decoder, &block), fields(&third));
        assert_eq!(decoder.get(62), Some((&b"custom-key"[..], &b"custom-value"[..])));
    }

    #[test]
    fn the_table_forgets_the_oldest() {
        // RFC 7541, C.5, with a table of 256 bytes: entries push each other out.
        let mut decoder = Decoder::default();
        decoder.resize(256);
        let first = hex(
            "4803 3330 3258 0770 7269 7661 7465 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 3133 2032 303a 3133 3a32 \
             3120 474d 546e 1768 7474 7073 3a2f 2f77 7777 2e65 7861 6d70 6c65 2e63 6f6d",
        );
        decode(&mut decoder, &first).expect("the RFC's own block");
        assert_eq!(decoder.size, 222);
        decode(&mut decoder, &hex("4803 3330 37c1 c0bf")).expect("the RFC's own block");
        assert_eq!(decoder.size, 222);
        assert_eq!(decoder.get(62), Some((&b":status"[..], &b"307"[..])));
        assert_eq!(decoder.get(66), None, "302 is gone");
    }

    #[test]
    fn invalid_blocks_are_refused() {
        let faults = [
            ("80", "index 0"),
            ("be", "an index beyond the tables"),
            ("7e", "a name beyond the tables"),
            ("3fe2 1f", "a table larger than was allowed"),
            ("8220", "a resize behind a field"),
            ("4003 6162", "a string cut off"),
            ("ffff ffff ffff", "an integer without end"),
            ("40", "a name that is body_left"),
        ];
        for (block, what) in faults {
            assert_eq!(decode(&mut Decoder::default(), &hex(block)), Err(MalformedError), "{what}");
        }
        // Exactly the size that was allowed, twice.
        assert_eq!(decode(&mut Decoder::default(), &hex("3fe11f 20 82")), fields(&[(":method", "GET")]));
    }

    proptest! {
        #[test]
        fn encoded_fields_decode(
            expected in proptest::collection::vec(("[a-z:-]{1,30}", proptest::collection::vec(any::<u8>(), 0..300)), 0..8),
            status in "200|404|418",
        ) {
            let mut block = Vec::new();
            encode_no_table(&mut block);
            encode(":status", status.as_bytes(), &mut block);
            expected.iter().for_each(|(name, value)| encode(name, value, &mut block));
            let mut decoded = decode(&mut Decoder::default(), &block).expect("our own block");
            prop_assert_eq!(decoded.remove(0), (b":status".to_vec(), status.into_bytes()));
            let expected: Fields = expected.into_iter().map(|(name, value)| (name.into_bytes(), value)).collect();
            prop_assert_eq!(decoded, expected);
        }

        #[test]
        fn no_bytes_make_it_panic_or_outgrow_its_table(
            blocks in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..200), 1..20),
        ) {
            let mut decoder = Decoder::default();
            for block in blocks {
                _ = decoder.decode(&block, |_, _| ());
                prop_assert!(decoder.size <= TABLE);
            }
        }
    }

    fn encode_huffman(text: &[u8]) -> Vec<u8> {
        let mut bits = String::new();
        for symbol in text {
            let length = usize::from(LENGTHS[usize::from(*symbol)]);
            let (first, at) = DECODING.first[length];
            let index = DECODING.symbols[at..].iter().position(|other| other == symbol).expect("is there");
            bits.push_str(&format!("{:0length$b}", first as usize + index));
        }
        while !bits.len().is_multiple_of(8) {
            bits.push('1');
        }
        bits.as_bytes()
            .chunks(8)
            .map(|byte| u8::from_str_radix(std::str::from_utf8(byte).expect("digits"), 2).expect("bits"))
            .collect()
    }

    fn decoded(bytes: &[u8]) -> Result<Vec<u8>, MalformedError> {
        let mut out = Vec::new();
        decode_huffman(bytes, &mut out).map(|()| out)
    }

    #[test]
    fn the_examples_of_the_rfc() {
        // RFC 7541, C.4 and C.6.
        let www = [0xf1, 0xe3, 0xc2, 0xe5, 0xf2, 0x3a, 0x6b, 0xa0, 0xab, 0x90, 0xf4, 0xff];
        assert_eq!(decoded(&www), Ok(b"www.example.com".to_vec()));
        assert_eq!(decoded(&[0xa8, 0xeb, 0x10, 0x64, 0x9c, 0xbf]), Ok(b"no-cache".to_vec()));
        assert_eq!(decoded(&[0x64, 0x02]), Ok(b"302".to_vec()));
    }

    #[test]
    fn padding_and_the_end_of_string_are_checked() {
        // `0` is 00000; its padding must be ones, and less than a byte of them.
        assert_eq!(decoded(&[0b0000_0111]), Ok(b"0".to_vec()));
        assert_eq!(decoded(&[0b0000_0110]), Err(MalformedError));
        assert_eq!(decoded(&[0b0000_0111, 0xff]), Err(MalformedError));
        assert_eq!(decoded(&[0xff; 4]), Err(MalformedError));
        assert_eq!(decoded(&[0xff; 40]), Err(MalformedError));
    }

    proptest! {
        #[test]
        fn encoded_strings_decode(text in proptest::collection::vec(any::<u8>(), 0..200)) {
            prop_assert_eq!(decoded(&encode_huffman(&text)), Ok(text));
        }
    }
}
