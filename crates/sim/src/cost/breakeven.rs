//! Reading from the bucket against copying the data set to every node's disk first.
//!
//! Copying makes each node rent a disk for the whole data set and wait until it is filled; afterwards epochs run at compute
//! speed. Reading through a cache rents less disk and starts at once, but a run may stall. Both are runs, so both are priced
//! as a [`Usage`]; what differs per epoch decides after how many epochs the copy pays.

use super::{Bill, PriceSheet, Usage};
use serde::{Deserialize, Serialize};

/// One way to feed a run, split into what happens once and what every further epoch adds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Feed {
    /// Once: copying, listing, the first epoch's warm-up beyond a later epoch's share.
    pub once: Usage,
    /// Each epoch.
    pub per_epoch: Usage,
}

/// The comparison.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct BreakEven {
    /// The bill for the run read through the bucket.
    pub bucket: Bill,
    /// The bill for the run from local copies.
    pub copy: Bill,
    /// Epochs from which the copy is cheaper; `None` when it never is. 1 means at once.
    pub copy_pays_after_epochs: Option<u64>,
}

/// The data set to copy and the machines to copy it to.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct CopyPlan {
    /// Machines.
    pub nodes: u64,
    /// The data set's bytes.
    pub dataset_bytes: u64,
    /// Its objects: one get each, per node.
    pub objects: u64,
    /// Bytes per second that one node gets from the bucket while all copy.
    pub bytes_per_s_per_node: f64,
    /// Disk a node needs anyway (system), in bytes.
    pub system_bytes: u64,
    /// Hours of one epoch from local disk.
    pub epoch_hours: f64,
}

impl CopyPlan {
    /// The copy as a feed: everything is read once per node, then epochs run from disk.
    #[must_use]
    pub fn feed(&self, page_size: u64) -> Feed {
        let disk = self.dataset_bytes + self.system_bytes;
        let common = Usage {
            nodes: self.nodes,
            bucket_bytes: self.dataset_bytes,
            disk_bytes_per_node: disk,
            ..Usage::default()
        };
        let copy_hours = self.dataset_bytes as f64 / self.bytes_per_s_per_node.max(1.0) / 3600.0;
        Feed {
            once: Usage {
                hours: copy_hours,
                class_a_requests: self.nodes * self.objects.div_ceil(page_size.max(1)),
                class_b_requests: self.nodes * self.objects,
                source_bytes: self.nodes * self.dataset_bytes,
                ..common
            },
            per_epoch: Usage {
                hours: self.epoch_hours,
                ..common
            },
        }
    }
}

impl Feed {
    fn bill(&self, sheet: &PriceSheet, epochs: u64) -> Bill {
        let (once, each, e) = (sheet.price(&self.once), sheet.price(&self.per_epoch), epochs as f64);
        Bill {
            requests: once.requests + e * each.requests,
            bucket_storage: once.bucket_storage + e * each.bucket_storage,
            disk: once.disk + e * each.disk,
            network: once.network + e * each.network,
            instances: once.instances + e * each.instances,
        }
    }
}

/// Compares `bucket` with `copy` over `epochs`.
#[must_use]
pub fn compare(sheet: &PriceSheet, bucket: &Feed, copy: &Feed, epochs: u64) -> BreakEven {
    let fixed = sheet.price(&copy.once).total() - sheet.price(&bucket.once).total();
    let saved_per_epoch = sheet.price(&bucket.per_epoch).total() - sheet.price(&copy.per_epoch).total();
    let copy_pays_after_epochs = if fixed < 0.0 {
        (saved_per_epoch >= 0.0).then_some(1)
    } else if saved_per_epoch > 0.0 {
        Some(((fixed / saved_per_epoch).floor() as u64).saturating_add(1))
    } else {
        None
    };
    BreakEven {
        bucket: bucket.bill(sheet, epochs),
        copy: copy.bill(sheet, epochs),
        copy_pays_after_epochs,
    }
}

#[cfg(test)]
mod tests {
    use super::super::prices::sheet;
    use super::*;

    fn plan(epoch_hours: f64) -> CopyPlan {
        CopyPlan {
            nodes: 4,
            dataset_bytes: 1_000_000_000_000,
            objects: 1_000_000,
            bytes_per_s_per_node: 1e9,
            system_bytes: 20_000_000_000,
            epoch_hours,
        }
    }

    #[test]
    fn the_copy_never_pays_when_the_bucket_feeds_at_full_speed() {
        let copy = plan(1.0).feed(1000);
        let disk = Usage {
            nodes: 4,
            hours: 1.0,
            bucket_bytes: 1_000_000_000_000,
            disk_bytes_per_node: 100_000_000_000,
            ..Usage::default()
        };
        let bucket = Feed {
            once: Usage {
                class_b_requests: 1_000_000,
                ..Usage::default()
            },
            per_epoch: disk,
        };
        assert_eq!(compare(&sheet(), &bucket, &copy, 10).copy_pays_after_epochs, None);
    }

    #[test]
    fn the_break_even_epoch_is_where_the_bills_cross() {
        let copy = plan(1.0).feed(1000);
        let slow = Usage {
            nodes: 4,
            hours: 1.25,
            class_b_requests: 1_000_000,
            bucket_bytes: 1_000_000_000_000,
            ..Usage::default()
        };
        let bucket = Feed {
            once: Usage::default(),
            per_epoch: slow,
        };
        let at = compare(&sheet(), &bucket, &copy, 10)
            .copy_pays_after_epochs
            .expect("stalls cost more than disks");
        let (before, after) = (
            compare(&sheet(), &bucket, &copy, at - 1),
            compare(&sheet(), &bucket, &copy, at),
        );
        assert!(before.copy.total() >= before.bucket.total() && after.copy.total() < after.bucket.total());
    }
}
