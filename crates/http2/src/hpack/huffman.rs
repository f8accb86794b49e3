//! The Huffman code of header strings (RFC 7541, Appendix B).
//!
//! The code is canonical: codes of one length are consecutive, in the order of their symbols, and
//! follow those of the next shorter length. So the lengths define it.

use std::sync::LazyLock;

use super::MalformedError;

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
    /// First code by number of bits, with the index of its symbol in `symbols`.
    first: [(u32, usize); LONGEST + 1],
    count: [u32; LONGEST + 1],
    /// Symbols in the order of their codes.
    symbols: Vec<u8>,
}

static DECODING: LazyLock<Decoding> = LazyLock::new(|| {
    let mut decoding =
        Decoding { first: [(0, 0); LONGEST + 1], count: [0; LONGEST + 1], symbols: Vec::with_capacity(256) };
    let mut code = 0;
    for length in 1..=LONGEST {
        code <<= 1;
        decoding.first[length] = (code, decoding.symbols.len());
        let symbols = (0..=u8::MAX).filter(|symbol| usize::from(LENGTHS[usize::from(*symbol)]) == length);
        decoding.symbols.extend(symbols);
        let count = decoding.symbols.len() - decoding.first[length].1;
        decoding.count[length] = count as u32;
        code += count as u32;
    }
    decoding
});

pub(super) fn decode(bytes: &[u8], out: &mut Vec<u8>) -> Result<(), MalformedError> {
    let decoding = &*DECODING;
    let (mut code, mut length) = (0_u32, 0_usize);
    for byte in bytes {
        for bit in (0..8).rev() {
            code = code << 1 | u32::from(byte >> bit & 1);
            length += 1;
            if length > LONGEST {
                return Err(MalformedError);
            }
            let (first, at) = decoding.first[length];
            // Below `first` no code of this length can be: it would have been found as a shorter one.
            let offset = code - first;
            if offset < decoding.count[length] {
                out.push(decoding.symbols[at + offset as usize]);
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

    fn encode(text: &[u8]) -> Vec<u8> {
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
        decode(bytes, &mut out).map(|()| out)
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
            prop_assert_eq!(decoded(&encode(&text)), Ok(text));
        }
    }
}
