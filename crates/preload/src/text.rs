//! Text of a bounded length, on the stack or in a static: written without an allocation.

use core::fmt;

/// Up to `N` bytes; what is more is cut off, and [`is_whole`](Text::is_whole) says so.
#[derive(Clone, Copy)]
pub struct Text<const N: usize> {
    bytes: [u8; N],
    len: usize,
    is_whole: bool,
}

impl<const N: usize> Text<N> {
    pub const fn new() -> Self {
        Text {
            bytes: [0; N],
            len: 0,
            is_whole: true,
        }
    }

    pub fn push(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            let Some(place) = self.bytes.get_mut(self.len) else {
                self.is_whole = false;
                return;
            };
            *place = byte;
            self.len += 1;
        }
    }

    pub fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or(&[])
    }

    pub const fn is_whole(&self) -> bool {
        self.is_whole
    }

    /// The same with a zero behind it, for C; none where it doesn't fit.
    pub fn c(&mut self) -> Option<*const libc::c_char> {
        *self.bytes.get_mut(self.len)? = 0;
        self.is_whole.then_some(self.bytes.as_ptr().cast())
    }
}

impl<const N: usize> fmt::Write for Text<N> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.push(text.as_bytes());
        Ok(())
    }
}

/// A number at the beginning of a text, behind blanks.
pub fn number(text: &[u8]) -> Option<u64> {
    let text = text.trim_ascii_start();
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit());
    let mut found = None;
    for digit in digits {
        let before: u64 = found.unwrap_or(0);
        found = Some(before.checked_mul(10)?.checked_add(u64::from(digit - b'0'))?);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_cut_where_it_has_no_room_and_says_so() {
        let mut text = Text::<4>::new();
        text.push(b"abc");
        assert!(text.c().is_some());
        text.push(b"d");
        assert!(text.is_whole() && text.c().is_none());
        text.push(b"e");
        assert_eq!((text.bytes(), text.is_whole()), (&b"abcd"[..], false));
    }

    #[test]
    fn numbers_end_where_digits_do() {
        assert_eq!(number(b"  128\n"), Some(128));
        assert_eq!(number(b"max"), None);
        assert_eq!(number(b""), None);
        assert_eq!(number(b"99999999999999999999"), None);
    }
}
