//! Tar shards in WebDataset's convention, indexed without unpacking.
//!
//! [`header`] understands one header block, [`group`] forms samples out of members, and `scan` walks a shard from header
//! to header with ranged reads. Names in archives are data of strangers: they are never used as paths, and those that
//! climb out of their directory are refused.

mod group;
mod header;
mod scan;
mod sidecar;

pub(crate) use group::Sample;
pub(crate) use scan::{Scanned, scan};

use crate::Result;
use crate::index::{IndexBuilder, NewField, NewSample};

/// Adds the samples of a shard to an index.
pub(crate) fn add(builder: &mut IndexBuilder, object: u64, samples: &[Sample]) -> Result<()> {
    let mut fields = Vec::new();
    for sample in samples {
        fields.clear();
        fields.extend(sample.fields.iter().map(|f| NewField {
            name: &f.name,
            offset: f.offset - sample.offset,
            length: f.length,
        }));
        let new = NewSample {
            object,
            offset: sample.offset,
            length: sample.length,
            more: &[],
            label: sample.label,
            crc32c: None,
            fields: &fields,
            name: &sample.base,
        };
        builder.sample(new)?;
    }
    Ok(())
}
