//! Header compression (RFC 7541): decodes everything that peers may send, encodes only what they
//! must accept.
//!
//! The decoder's memory is bounded by [`TABLE`]; the caller bounds the decoded size of a block,
//! field by field. The encoder keeps no table: responses have two or three fields.

mod huffman;
mod table;

pub(super) use table::size_of;
use table::{Dynamic, STATIC};

/// Bytes of the dynamic table that peers may use: the protocol's default, which needs no SETTINGS.
const TABLE: usize = 4096;

/// Block that cannot be decoded. It ends the connection, because later blocks build upon it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MalformedError;

/// Decoder of the header blocks of one connection, in order.
#[derive(Debug)]
pub(super) struct Decoder {
    table: Dynamic,
}

impl Default for Decoder {
    fn default() -> Self {
        Self { table: Dynamic::new(TABLE) }
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
                self.table.resize(size);
                continue;
            }
            resizable = false;
            if first & 0x80 != 0 {
                let (name, value) = self.table.get(integer(&mut rest, 7)?).ok_or(MalformedError)?;
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
                name.extend_from_slice(self.table.get(index).ok_or(MalformedError)?.0);
            }
            string(&mut rest, &mut value)?;
            tell(&name, &value);
            if indexed {
                self.table.insert(&name, &value);
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
        return huffman::decode(bytes, out);
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
        assert_eq!(decoder.table.get(62), Some((&b"custom-key"[..], &b"custom-value"[..])));
    }

    #[test]
    fn the_table_forgets_the_oldest() {
        // RFC 7541, C.5, with a table of 256 bytes: entries push each other out.
        let mut decoder = Decoder::default();
        decoder.table.resize(256);
        let first = hex(
            "4803 3330 3258 0770 7269 7661 7465 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 3133 2032 303a 3133 3a32 \
             3120 474d 546e 1768 7474 7073 3a2f 2f77 7777 2e65 7861 6d70 6c65 2e63 6f6d",
        );
        decode(&mut decoder, &first).expect("the RFC's own block");
        assert_eq!(decoder.table.size, 222);
        decode(&mut decoder, &hex("4803 3330 37c1 c0bf")).expect("the RFC's own block");
        assert_eq!(decoder.table.size, 222);
        assert_eq!(decoder.table.get(62), Some((&b":status"[..], &b"307"[..])));
        assert_eq!(decoder.table.get(66), None, "302 is gone");
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
                prop_assert!(decoder.table.size <= TABLE);
            }
        }
    }
}
