//! Price sheets: dated list prices that a user edits, and the bill for a [`Usage`].

use super::{HOURS_PER_MONTH, Usage};
use serde::{Deserialize, Serialize};

/// Decimal gigabytes, as clouds bill them.
const GB: f64 = 1e9;

/// Request prices by class, per 10,000.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RequestPrices {
    /// List and put.
    pub class_a_per_10k: f64,
    /// Get and head.
    pub class_b_per_10k: f64,
}

/// One provider's prices on one day, in dollars.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PriceSheet {
    /// What it is called: `gcs`, `s3`, `azure`, or the user's own name.
    pub name: String,
    /// The day the prices were noted, as YYYY-MM-DD.
    pub dated: String,
    /// The region they are for.
    pub region: String,
    /// Where they were read, and that they must be verified.
    pub source: String,
    /// Requests.
    pub requests: RequestPrices,
    /// One GB in the bucket for a month.
    pub storage_gb_month: f64,
    /// One GB leaving the region or the provider.
    pub egress_gb: f64,
    /// One GB between zones of a region.
    pub cross_zone_gb: f64,
    /// One machine for an hour; its name is in `instance`.
    pub instance_hour: f64,
    /// The machine that `instance_hour` is for.
    pub instance: String,
    /// One GB of a node's disk for a month.
    pub disk_gb_month: f64,
    /// Objects in one page of a listing.
    pub page_size: u64,
}

/// A bill, in dollars.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Bill {
    /// Class A and B requests.
    pub requests: f64,
    /// The data set in the bucket, for the run's hours.
    pub bucket_storage: f64,
    /// The nodes' disks, for the run's hours.
    pub disk: f64,
    /// Egress and traffic between zones.
    pub network: f64,
    /// Machines.
    pub instances: f64,
}

impl Bill {
    /// The sum.
    #[must_use]
    pub fn total(&self) -> f64 {
        self.requests + self.bucket_storage + self.disk + self.network + self.instances
    }
}

impl PriceSheet {
    /// What `usage` costs. Storage and disks are charged for the hours used, not for whole months.
    #[must_use]
    pub fn price(&self, usage: &Usage) -> Bill {
        let nodes = usage.nodes as f64;
        let months = usage.hours / HOURS_PER_MONTH;
        let per_10k = usage.class_a_requests as f64 * self.requests.class_a_per_10k
            + usage.class_b_requests as f64 * self.requests.class_b_per_10k;
        Bill {
            requests: per_10k / 10_000.0,
            bucket_storage: usage.bucket_bytes as f64 / GB * self.storage_gb_month * months,
            disk: nodes * usage.disk_bytes_per_node as f64 / GB * self.disk_gb_month * months,
            network: usage.egress_bytes as f64 / GB * self.egress_gb
                + usage.cross_zone_bytes as f64 / GB * self.cross_zone_gb,
            instances: nodes * usage.hours * self.instance_hour,
        }
    }

    /// The sheets that ship, as TOML text: (name, text). A caller parses one, or the user's edited copy of it.
    pub const SHIPPED: [(&str, &str); 3] = [
        ("gcs", include_str!("prices/gcs.toml")),
        ("s3", include_str!("prices/s3.toml")),
        ("azure", include_str!("prices/azure.toml")),
    ];
}

#[cfg(test)]
pub(super) fn sheet() -> PriceSheet {
    PriceSheet {
        name: "test".into(),
        dated: "2024-01-01".into(),
        region: "r".into(),
        source: "s".into(),
        requests: RequestPrices {
            class_a_per_10k: 0.05,
            class_b_per_10k: 0.004,
        },
        storage_gb_month: 0.02,
        egress_gb: 0.12,
        cross_zone_gb: 0.01,
        instance_hour: 3.0,
        instance: "i".into(),
        disk_gb_month: 0.1,
        page_size: 1000,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_count_has_its_price() {
        let usage = Usage {
            nodes: 2,
            hours: HOURS_PER_MONTH,
            class_a_requests: 10_000,
            class_b_requests: 20_000,
            source_bytes: 1,
            egress_bytes: 10_000_000_000,
            cross_zone_bytes: 100_000_000_000,
            bucket_bytes: 50_000_000_000,
            disk_bytes_per_node: 10_000_000_000,
        };
        let bill = sheet().price(&usage);
        assert!((bill.requests - 0.058).abs() < 1e-9);
        assert!((bill.bucket_storage - 1.0).abs() < 1e-9 && (bill.disk - 2.0).abs() < 1e-9);
        assert!((bill.network - 2.2).abs() < 1e-9 && (bill.instances - 4380.0).abs() < 1e-6);
        assert!((bill.total() - 4385.258).abs() < 1e-6);
    }

    #[test]
    fn a_run_inside_one_zone_pays_no_network() {
        let usage = Usage {
            nodes: 8,
            hours: 1.0,
            source_bytes: 1 << 40,
            ..Usage::default()
        };
        assert_eq!(sheet().price(&usage).network, 0.0);
    }
}
