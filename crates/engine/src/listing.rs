//! TEMPORARY until format::build lands.
use foreload_store::format::Format;
use foreload_store::index::NewObject;
use foreload_store::{Index, IndexBuilder, Result, Source};
use futures::StreamExt;
#[allow(missing_docs)]
pub async fn build(source: &Source) -> Result<Index> {
    let mut all = Vec::new();
    let mut pages = source.list("");
    while let Some(page) = pages.next().await {
        all.extend(page?);
    }
    all.sort_by(|a, b| a.key.cmp(&b.key));
    let mut classes: Vec<String> = all.iter().filter_map(|o| o.key.split_once('/').map(|(c, _)| c.to_owned())).collect();
    classes.dedup();
    let mut b = IndexBuilder::new(source.root(), Format::Folder);
    b.classes(classes.iter().map(String::as_str));
    for o in &all {
        let label = o.key.split_once('/').and_then(|(c, _)| classes.binary_search_by(|k| k.as_str().cmp(c)).ok()).map(|i| i as i64);
        b.whole_object(NewObject { key: &o.key, size: o.size, etag: o.etag.as_deref(), version: o.version.as_deref() }, label, None)?;
    }
    b.finish()
}
