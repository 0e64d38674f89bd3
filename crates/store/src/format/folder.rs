//! One object per sample: class directories (torchvision's ImageFolder) or a flat set.
//!
//! The order is ImageFolder's: classes by name, inside a class directories by path, inside a directory files by name. So
//! sample `i` here is sample `i` there, and a seed gives the same run.

use crate::source::ObjectMeta;

/// The class of a key: its first directory.
pub(crate) fn class(key: &str) -> Option<&str> {
    key.split_once('/').map(|(class, _)| class)
}

/// Sorts as ImageFolder does.
pub(crate) fn sort(objects: &mut [ObjectMeta]) {
    fn parts(key: &str) -> (&str, &str, &str) {
        let (directory, name) = key.rsplit_once('/').unwrap_or(("", key));
        (class(key).unwrap_or(""), directory, name)
    }
    objects.sort_unstable_by(|a, b| parts(&a.key).cmp(&parts(&b.key)));
}

/// Whether the object is data: with `extensions`, one of these; otherwise whatever is not hidden or a marker.
pub(crate) fn is_data(key: &str, extensions: &[String]) -> bool {
    let name = key.rsplit('/').next().unwrap_or(key);
    if extensions.is_empty() {
        let is_hidden = key.split('/').any(|part| part.starts_with('.'));
        let is_marker = name.starts_with("_SUCCESS") || name == "Thumbs.db" || name.ends_with(".foreload");
        return !is_hidden && !is_marker;
    }
    let lower = name.to_ascii_lowercase();
    extensions
        .iter()
        .any(|e| lower.ends_with(&format!(".{}", e.trim_start_matches('.').to_ascii_lowercase())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_is_that_of_image_folder() {
        let object = |key: &str| ObjectMeta {
            key: key.into(),
            size: 1,
            etag: None,
            version: None,
            modified: None,
        };
        // a-b sorts before a/ as text, but class "a" comes before class "a-b"; files come before subdirectories.
        let mut objects: Vec<_> = ["a-b/1", "a/x/1", "a/z", "a/x0", "a/b/9"].map(object).into();
        sort(&mut objects);
        let keys: Vec<_> = objects.iter().map(|o| o.key.as_str()).collect();
        assert_eq!(keys, ["a/x0", "a/z", "a/b/9", "a/x/1", "a-b/1"]);
    }

    #[test]
    fn hidden_files_and_other_extensions_are_left_out() {
        let jpeg = ["jpg".to_owned(), ".JPEG".to_owned()];
        assert!(is_data("a/x.JPG", &jpeg) && is_data("x.jpeg", &jpeg) && !is_data("x.png", &jpeg));
        assert!(is_data("a/x", &[]) && !is_data("a/.DS_Store", &[]) && !is_data(".git/x", &[]));
    }
}
