//! The 128-bit name of a spec: equal specs, equal digests, on every machine and in every release.
//!
//! Ranks compare digests before the first batch, and a checkpoint carries one, so a digest must never depend on the
//! machine, the process or the serialisation library. [`DigestBuilder`] therefore hashes fields that are written out by hand,
//! each preceded by its length, with SipHash-2-4 in its 128-bit form (Aumasson and Bernstein, 2012) under a fixed key: forty
//! lines, published test vectors, far fewer collisions than a 64-bit hash. It is a name, not a signature: someone who wants to make
//! two specs collide can.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::Error;

/// A 128-bit name, shown as 32 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Digest([u8; 16]);

impl Digest {
    /// The digest with these bytes.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// Its bytes.
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }

    /// The digest of one byte string under `domain` (what the bytes are: `"dataset/1"`).
    pub fn of(domain: &str, bytes: &[u8]) -> Self {
        DigestBuilder::new(domain).bytes(bytes).finish()
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Digest({self})")
    }
}

impl FromStr for Digest {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let malformed = || Error::MalformedDigest {
            text: text.chars().take(64).collect(),
        };
        // `from_str_radix` alone would also take a leading sign.
        if text.len() != 32 || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(malformed());
        }
        u128::from_str_radix(text, 16)
            .map(|value| Self(value.to_be_bytes()))
            .map_err(|_| malformed())
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// Builds a [`Digest`] field by field; what is added, and in which order, is part of the format it names.
#[derive(Clone, Debug)]
pub struct DigestBuilder(Sip128);

impl DigestBuilder {
    /// Starts a digest of the kind and version `domain`, such as `"order/1"`: digests of different domains never meet.
    pub fn new(domain: &str) -> Self {
        // "foreload" twice, as two little-endian words: any fixed key does.
        let key = u64::from_le_bytes(*b"foreload");
        Self(Sip128::new(key, key)).text(domain)
    }

    /// Adds a byte string and its length.
    #[must_use]
    pub fn bytes(mut self, bytes: &[u8]) -> Self {
        self.0.write(&(bytes.len() as u64).to_le_bytes());
        self.0.write(bytes);
        self
    }

    /// Adds a string.
    #[must_use]
    pub fn text(self, text: &str) -> Self {
        self.bytes(text.as_bytes())
    }

    /// Adds a number.
    #[must_use]
    pub fn number(mut self, value: u64) -> Self {
        self.0.write(&value.to_le_bytes());
        self
    }

    /// Adds a list of numbers and its length.
    #[must_use]
    pub fn numbers(mut self, values: &[u64]) -> Self {
        self.0.write(&(values.len() as u64).to_le_bytes());
        values.iter().for_each(|value| self.0.write(&value.to_le_bytes()));
        self
    }

    /// Adds a digest.
    #[must_use]
    pub fn digest(self, digest: &Digest) -> Self {
        self.bytes(&digest.0)
    }

    /// The digest of everything added.
    pub fn finish(self) -> Digest {
        Digest(self.0.finish())
    }
}

/// SipHash-2-4 with 128 bits of output, fed in pieces.
#[derive(Clone, Debug)]
struct Sip128 {
    v: [u64; 4],
    /// Bytes that don't fill a word yet, and how many were written in all.
    tail: [u8; 8],
    written: u64,
}

impl Sip128 {
    fn new(k0: u64, k1: u64) -> Self {
        let v = [
            k0 ^ 0x736f_6d65_7073_6575,
            k1 ^ 0x646f_7261_6e64_6f6d ^ 0xee,
            k0 ^ 0x6c79_6765_6e65_7261,
            k1 ^ 0x7465_6462_7974_6573,
        ];
        Self {
            v,
            tail: [0; 8],
            written: 0,
        }
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            let at = (self.written % 8) as usize;
            self.tail[at] = byte;
            self.written += 1;
            if at == 7 {
                self.word(u64::from_le_bytes(self.tail));
            }
        }
    }

    fn finish(mut self) -> [u8; 16] {
        let kept = (self.written % 8) as usize;
        self.tail[kept..].fill(0);
        self.word(u64::from_le_bytes(self.tail) | self.written << 56);
        let mut out = [0; 16];
        for (half, mark) in out.chunks_exact_mut(8).zip([(2, 0xee), (1, 0xdd)]) {
            self.v[mark.0] ^= mark.1;
            self.rounds(4);
            half.copy_from_slice(&self.v.iter().fold(0, |sum, word| sum ^ word).to_le_bytes());
        }
        out
    }

    fn word(&mut self, word: u64) {
        self.v[3] ^= word;
        self.rounds(2);
        self.v[0] ^= word;
    }

    fn rounds(&mut self, count: usize) {
        let v = &mut self.v;
        for _ in 0..count {
            v[0] = v[0].wrapping_add(v[1]);
            v[2] = v[2].wrapping_add(v[3]);
            v[1] = v[1].rotate_left(13) ^ v[0];
            v[3] = v[3].rotate_left(16) ^ v[2];
            v[0] = v[0].rotate_left(32);
            v[2] = v[2].wrapping_add(v[1]);
            v[0] = v[0].wrapping_add(v[3]);
            v[1] = v[1].rotate_left(17) ^ v[2];
            v[3] = v[3].rotate_left(21) ^ v[0];
            v[2] = v[2].rotate_left(32);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reference(length: u8) -> String {
        let mut sip = Sip128::new(0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908);
        sip.write(&(0..length).collect::<Vec<_>>());
        Digest(sip.finish()).to_string()
    }

    /// `vectors_sip128` of the reference implementation.
    #[test]
    fn the_hash_is_siphash_2_4_128() {
        assert_eq!(reference(0), "a3817f04ba25a8e66df67214c7550293");
        assert_eq!(reference(1), "da87c1d86b99af44347659119b22fc45");
        assert_eq!(reference(15), "5493e99933b0a8117e08ec0f97cfc3d9");
    }

    #[test]
    fn pieces_do_not_matter_but_field_borders_do() {
        let whole = DigestBuilder::new("test/1").bytes(b"abcdefghijk").finish();
        assert_eq!(whole, Digest::of("test/1", b"abcdefghijk"));
        assert_ne!(
            whole,
            DigestBuilder::new("test/1").bytes(b"abcdef").bytes(b"ghijk").finish()
        );
        assert_ne!(whole, Digest::of("test/2", b"abcdefghijk"));
    }

    #[test]
    fn text_and_json_come_back_as_they_were() {
        let digest = Digest::of("test/1", b"x");
        assert_eq!(digest.to_string().parse::<Digest>().expect("own text"), digest);
        let json = serde_json::to_string(&digest).expect("serialises");
        assert_eq!(serde_json::from_str::<Digest>(&json).expect("own json"), digest);
        for wrong in [
            "",
            "00",
            "+0000000000000000000000000000000",
            "zz000000000000000000000000000000",
        ] {
            assert!(wrong.parse::<Digest>().is_err(), "{wrong}");
        }
    }
}
