//! Nonces: identifiers of responses.

use std::fmt;

use super::Generation;

/// Identifier of a response, by which its ACK is recognised (R-SotW-03).
///
/// The shared form follows from the generation, so cohorts share whole frames. It has the type, as nonces are
/// unique in a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nonce {
    /// Number of the type in the cache.
    pub type_index: u32,
    /// Position of the receiver after this response.
    pub generation: Generation,
    pub suffix: Suffix,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Suffix {
    /// The only or first response of its generation.
    None,
    /// Additions, before removals of the same generation.
    Additions,
    /// A number of this stream's own.
    Own(u32),
    /// As [`Own`](Self::Own), with more of the answer to follow (R-Up-23). Other relays recognise it.
    Part(u32),
}

impl Nonce {
    /// Last byte of such a nonce.
    pub const MORE: u8 = b'>';

    pub const fn announces_more(&self) -> bool {
        matches!(self.suffix, Suffix::Part(_))
    }

    /// Text on the wire. Written by hand: every ACK is compared with one.
    pub fn text(&self) -> NonceText {
        let mut text = NonceText { bytes: [0; NonceText::LONGEST], len: 0 };
        text.hex(self.type_index.into());
        text.push(b'.');
        text.hex(self.generation.get());
        match self.suffix {
            Suffix::None => {}
            // Not a hexadecimal digit.
            Suffix::Additions => text.push(b'+'),
            Suffix::Own(number) | Suffix::Part(number) => {
                text.push(b'~');
                text.hex(number.into());
            }
        }
        if self.announces_more() {
            text.push(Self::MORE);
        }
        text
    }
}

impl fmt::Display for Nonce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.text().as_bytes().iter().try_for_each(|byte| fmt::Write::write_char(f, char::from(*byte)))
    }
}

/// Text of a nonce, without allocation.
#[derive(Clone, Copy, Debug)]
pub struct NonceText {
    bytes: [u8; Self::LONGEST],
    len: usize,
}

impl NonceText {
    /// Numbers of 32, 64 and 32 bits in hex, two separators and one byte behind.
    const LONGEST: usize = 8 + 1 + 16 + 1 + 8 + 1;

    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    fn push(&mut self, byte: u8) {
        self.bytes[self.len] = byte;
        self.len += 1;
    }

    fn hex(&mut self, number: u64) {
        let digits = (64 - (number | 1).leading_zeros()).div_ceil(4);
        for digit in (0..digits).rev() {
            self.push(b"0123456789abcdef"[(number >> (4 * digit) & 0xf) as usize]);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_nonce_is_its_numbers_in_hex(type_index: u32, generation: u64, number: u32) {
            let nonce = |suffix| Nonce { type_index, generation: generation.into(), suffix }.to_string();
            prop_assert_eq!(nonce(Suffix::None), format!("{type_index:x}.{generation:x}"));
            prop_assert_eq!(nonce(Suffix::Additions), format!("{type_index:x}.{generation:x}+"));
            prop_assert_eq!(nonce(Suffix::Own(number)), format!("{type_index:x}.{generation:x}~{number:x}"));
            prop_assert_eq!(nonce(Suffix::Part(number)), format!("{type_index:x}.{generation:x}~{number:x}>"));
        }
    }

    #[test]
    fn r_sotw_03_the_additions_of_one_generation_are_not_called_as_another_generation() {
        let nonce = |generation: u64, suffix| Nonce { type_index: 1, generation: generation.into(), suffix };
        let (additions, later) = (nonce(0x3c, Suffix::Additions), nonce(0x3ca, Suffix::None));
        assert_ne!(additions.to_string(), later.to_string());
    }
}
