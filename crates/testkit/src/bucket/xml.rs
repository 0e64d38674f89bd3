//! The little XML that S3 needs: escaping, elements, and the two bodies that clients send.

use serde::Deserialize;

use super::refusal::Refusal;

/// The namespace of S3's documents; some clients look for it.
pub const NAMESPACE: &str = "http://s3.amazonaws.com/doc/2006-03-01/";

/// Escapes text for an element. Control characters become references, as in S3.
#[must_use]
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            letter if letter.is_control() => {
                escaped.push_str(&format!("&#x{:X};", u32::from(letter)));
            }
            letter => escaped.push(letter),
        }
    }
    escaped
}

/// An element with text.
#[must_use]
pub fn element(name: &str, text: &str) -> String {
    format!("<{name}>{}</{name}>", escape(text))
}

/// A document whose root has S3's namespace.
#[must_use]
pub fn document(root: &str, inside: &str) -> String {
    format!("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<{root} xmlns=\"{NAMESPACE}\">{inside}</{root}>")
}

/// The body of `DeleteObjects`.
#[derive(Debug, Deserialize)]
pub struct Deletes {
    /// The objects.
    #[serde(rename = "Object", default)]
    pub objects: Vec<DeletedKey>,
    /// Whether only errors are reported.
    #[serde(rename = "Quiet", default)]
    pub quiet: bool,
}

/// One object of [`Deletes`].
#[derive(Debug, Deserialize)]
pub struct DeletedKey {
    /// Its key.
    #[serde(rename = "Key")]
    pub key: String,
}

/// The body of `CompleteMultipartUpload`.
#[derive(Debug, Deserialize)]
pub struct Completion {
    /// The parts, in order.
    #[serde(rename = "Part", default)]
    pub parts: Vec<CompletedPart>,
}

/// One part of [`Completion`].
#[derive(Debug, Deserialize)]
pub struct CompletedPart {
    /// Its number.
    #[serde(rename = "PartNumber")]
    pub number: u32,
    /// Its ETag, with or without quotes.
    #[serde(rename = "ETag")]
    pub etag: String,
}

/// Reads a client's body.
///
/// # Errors
///
/// 400 `MalformedXML`.
pub fn read<T: serde::de::DeserializeOwned>(body: &[u8]) -> Result<T, Refusal> {
    let malformed = |why: String| Refusal::new(http::StatusCode::BAD_REQUEST, "MalformedXML", why);
    let text = std::str::from_utf8(body).map_err(|error| malformed(error.to_string()))?;
    quick_xml::de::from_str(text).map_err(|error| malformed(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_bodies_are_read() {
        let deletes: Deletes = read(
            b"<?xml version=\"1.0\"?><Delete xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">\
              <Object><Key>a &amp; b</Key></Object><Object><Key>c</Key></Object>\
              <Quiet>true</Quiet></Delete>",
        )
        .unwrap();
        let keys: Vec<&str> = deletes.objects.iter().map(|o| o.key.as_str()).collect();
        assert_eq!((keys, deletes.quiet), (vec!["a & b", "c"], true));
        assert!(read::<Completion>(b"<nonsense").is_err());
    }
}
