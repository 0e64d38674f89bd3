//! URLs of data sets: scheme, bucket, prefix.
//!
//! Keys are text, not URL paths: what follows `s3://bucket/` is taken as it is, including `#`, `?`, `%` and spaces. Only
//! `http(s)` and `file` URLs are percent-encoded, as their schemes say.

use super::settings::Cloud;
use crate::{Error, Result};
use percent_encoding::{AsciiSet, percent_decode_str, utf8_percent_encode};
use std::borrow::Cow;
use std::path::{Path, PathBuf};

/// A parsed URL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Address {
    pub place: Place,
    /// Bucket, container or host (with its port).
    pub name: String,
    /// Key prefix without slashes at its ends.
    pub prefix: String,
    /// Azure: the account, where the URL names it.
    pub account: Option<String>,
    scheme: &'static str,
}

/// What kind of place it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Place {
    Cloud(Cloud),
    Directory(PathBuf),
}

/// The service that a scheme names in any of its spellings, and the spelling we use.
fn service(scheme: &str) -> Option<(Option<Cloud>, &'static str)> {
    Some(match scheme.to_ascii_lowercase().as_str() {
        "s3" | "s3a" | "s3n" => (Some(Cloud::S3), "s3"),
        "gs" | "gcs" => (Some(Cloud::Gs), "gs"),
        "az" | "azure" | "abfs" | "abfss" | "adl" => (Some(Cloud::Azure), "az"),
        "http" => (Some(Cloud::Http), "http"),
        "https" => (Some(Cloud::Http), "https"),
        "file" => (None, "file"),
        _ => return None,
    })
}

/// A URL's scheme in the one spelling that we use: `s3`, `gs`, `az`, `http`, `https`, `file`, as a path is; `None`: it is none that we read.
#[must_use]
pub fn scheme(url: &str) -> Option<&'static str> {
    url.split_once("://")
        .map_or(Some("file"), |(scheme, _)| Some(service(scheme)?.1))
}

/// The URL that somebody meant who left a slash out, where a path has a part that reads `s3:` or so.
pub(crate) fn meant(path: &Path) -> Option<String> {
    let text = path.to_str()?;
    let is_meant = |part: &&str| part.strip_suffix(':').is_some_and(|scheme| service(scheme).is_some());
    let scheme = text.split('/').find(is_meant)?;
    let (_, rest) = text.split_once(&format!("{scheme}/"))?;
    // A file's path begins with its slash.
    let slash = if scheme.eq_ignore_ascii_case("file:") { "/" } else { "" };
    Some(format!("{scheme}//{slash}{rest}"))
}

impl Address {
    pub fn parse(text: &str) -> Result<Self> {
        let Some((scheme, rest)) = text.split_once("://") else {
            return Self::directory(PathBuf::from(text));
        };
        let (cloud, scheme) = match service(scheme) {
            Some((Some(cloud), scheme)) => (cloud, scheme),
            Some((None, _)) => {
                let path = rest.strip_prefix("localhost").unwrap_or(rest);
                let path = percent_decode_str(path).decode_utf8();
                let path = path.map_err(|_| invalid(text, "its path is not UTF-8"))?;
                // What is before the last slash of file:///name.
                return Self::directory(PathBuf::from(if path.is_empty() { "/" } else { path.as_ref() }));
            }
            None => {
                let scheme = scheme.to_ascii_lowercase();
                let error = invalid(text, &format!("the scheme {scheme:?} is not known"));
                return Err(error.with_remedy("use s3, gs, az, http, https, file or a path"));
            }
        };
        let (name, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        if name.is_empty() {
            return Err(invalid(text, "it names no bucket").with_remedy("write scheme://bucket/prefix"));
        }
        let mut prefix = prefix.trim_matches('/').to_owned();
        if cloud == Cloud::Http {
            if prefix.contains(['?', '#']) {
                return Err(invalid(text, "a URL with a query cannot be the root of a data set"));
            }
            prefix = percent_decode_str(&prefix)
                .decode_utf8()
                .map_err(|_| invalid(text, "its path is not UTF-8"))?
                .into_owned();
        }
        // abfss://container@account.dfs.core.windows.net/path
        let (name, account) = match name.split_once('@') {
            Some((container, host)) if cloud == Cloud::Azure => (container, host.split('.').next().map(str::to_owned)),
            _ => (name, None),
        };
        Ok(Self {
            place: Place::Cloud(cloud),
            name: name.to_owned(),
            prefix,
            account,
            scheme,
        })
    }

    fn directory(path: PathBuf) -> Result<Self> {
        let path = std::path::absolute(&path).map_err(|e| Error::io(format!("finding {}", path.display()), e))?;
        let text = path
            .to_str()
            .ok_or_else(|| invalid(&path.to_string_lossy(), "its path is not UTF-8"))?;
        let prefix = text.trim_end_matches('/').to_owned();
        Ok(Self {
            place: Place::Directory(path.clone()),
            name: String::new(),
            prefix,
            account: None,
            scheme: "file",
        })
    }

    /// `scheme://name`.
    pub fn scheme_and_name(&self) -> String {
        format!("{}://{}", self.scheme, self.name)
    }

    /// The URL in its one form, without a trailing slash; parsed, it is the same address.
    pub fn root(&self) -> String {
        let account = self.account.as_ref().map_or(String::new(), |name| format!("@{name}"));
        let place = format!("{}{account}", self.scheme_and_name());
        match (&self.place, self.prefix.as_str()) {
            // The path of a directory begins with its slash.
            (Place::Directory(_), prefix) => place + &encoded(self.scheme, prefix),
            (_, "") => place,
            (_, prefix) => joined(&place, prefix),
        }
    }
}

/// A URL or path without slashes at its end, but for those that are not there to separate.
pub(crate) fn without_slash(url: &str) -> &str {
    let end = url.trim_end_matches('/').len();
    match &url[..end] {
        "" => &url[..url.len().min(1)],
        scheme if scheme.ends_with(':') && url[end..].starts_with("//") => &url[..end + 2],
        trimmed => trimmed,
    }
}

/// The URL of a key below a root.
#[must_use]
pub fn joined(root: &str, key: &str) -> String {
    let scheme = root.split_once("://").map_or("", |(scheme, _)| scheme);
    format!("{root}/{}", encoded(scheme, key))
}

/// A key as URLs of a scheme are written: what its parts would be taken for is encoded, and no more, so that people can read it.
fn encoded<'a>(scheme: &str, key: &'a str) -> Cow<'a, str> {
    let encoded = match scheme {
        "file" => FILE,
        "http" | "https" => HTTP,
        _ => return key.into(),
    };
    utf8_percent_encode(key, encoded).into()
}

/// Of the characters that are encoded anyway, those that must be.
const FILE: &AsciiSet = &AsciiSet::EMPTY.add(b'%');
const HTTP: &AsciiSet = &FILE.add(b'?').add(b'#');

fn invalid(url: &str, why: &str) -> Error {
    Error::invalid(format!("{url:?} cannot be opened: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_have_one_form() {
        let root = |text: &str| Address::parse(text).unwrap().root();
        assert_eq!(root("s3://bucket"), "s3://bucket");
        assert_eq!(root("S3A://bucket/a b/#c/"), "s3://bucket/a b/#c");
        assert_eq!(root("gcs://bucket/x/"), "gs://bucket/x");
        assert_eq!(root("https://host:8443/a%20b/"), "https://host:8443/a b");
        assert_eq!(root("file:///tmp/a%20b/"), "file:///tmp/a b");
        assert_eq!(root("/tmp/x/"), "file:///tmp/x");
        assert_eq!(
            Address::parse("abfss://c@acc.dfs.core.windows.net/p")
                .unwrap()
                .account
                .as_deref(),
            Some("acc")
        );
        assert_eq!(root("/"), "file://");
        for (url, trimmed) in [
            ("/", "/"),
            ("/a//", "/a"),
            ("file:///", "file://"),
            ("s3://b/", "s3://b"),
            ("", ""),
        ] {
            assert_eq!(without_slash(url), trimmed, "{url}");
        }
        assert_eq!(root("file:///"), "file://");
        assert_eq!(root("/tmp/a%20b"), "file:///tmp/a%2520b");
        for bad in ["s3://", "ftp://x/y", "https://h/x?sig=1"] {
            assert!(Address::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_slash_that_was_left_out_is_put_in() {
        for (path, url) in [
            ("/home/me/s3:/b/x", Some("s3://b/x")),
            ("S3A:/b/x/y.tar", Some("S3A://b/x/y.tar")),
            ("/w/https:/host:1/x", Some("https://host:1/x")),
            ("/w/file:/tmp/x", Some("file:///tmp/x")),
            ("/home/me/s3/b", None),
            ("/home/ftp:/b", None),
            ("/home/me/s3:", None),
        ] {
            assert_eq!(meant(Path::new(path)).as_deref(), url, "{path}");
        }
    }

    #[test]
    fn a_root_is_parsed_as_what_it_was_made_of() {
        let mut urls = vec!["/".to_owned(), "abfss://c@acc.dfs.core.windows.net/p".to_owned()];
        for name in ["a b", "a%20b", "100%", "a%2Fb", "%25", "a?b", "a#b", "ä", "[x]"] {
            urls.push(format!("/tmp/{name}"));
            urls.push(format!("s3://b/{name}"));
            urls.push(format!("az://c/{name}"));
            urls.push(format!(
                "https://h:1/{}",
                utf8_percent_encode(name, percent_encoding::NON_ALPHANUMERIC)
            ));
        }
        for url in urls {
            let address = Address::parse(&url).unwrap();
            assert_eq!(Address::parse(&address.root()).unwrap(), address, "{url}");
            let below = Address::parse(&joined(&address.root(), "c%20d/1?2#3")).unwrap();
            assert_eq!(below.prefix, format!("{}/c%20d/1?2#3", address.prefix), "{url}");
        }
    }
}
