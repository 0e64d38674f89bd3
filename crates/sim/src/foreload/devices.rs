//! Tiers and network as first-come queues.

use crate::{Hardware, TierKind};

/// When each device is through with what it was asked so far.
#[derive(Debug)]
pub struct Devices {
    tiers: usize,
    read_s_per_mb: Vec<f64>,
    write_s_per_mb: Vec<f64>,
    write_behind_s: Vec<f64>,
    network_s_per_mb: f64,
    reading_until: Vec<f64>,
    writing_until: Vec<f64>,
    sending_until: Vec<f64>,
    receiving_until: Vec<f64>,
    sent_mb: Vec<f64>,
    received_mb: Vec<f64>,
    longest_queue_s: f64,
    longest_incast_s: f64,
}

impl Devices {
    /// Idle devices.
    pub fn new(hardware: &Hardware) -> Self {
        let (nodes, tiers) = (hardware.nodes as usize, hardware.tiers.len());
        let ram = |kind| kind == TierKind::Ram;
        Self {
            tiers,
            read_s_per_mb: hardware.tiers.iter().map(|t| 1.0 / t.read_mb_s).collect(),
            write_s_per_mb: hardware
                .tiers
                .iter()
                .map(|t| if ram(t.kind) { 0.0 } else { 1.0 / t.write_mb_s })
                .collect(),
            write_behind_s: hardware
                .tiers
                .iter()
                .map(|t| t.write_behind_mb / t.write_mb_s)
                .collect(),
            network_s_per_mb: if hardware.has_network {
                1.0 / hardware.network_mb_s
            } else {
                0.0
            },
            reading_until: vec![0.0; nodes * tiers],
            writing_until: vec![0.0; nodes * tiers],
            sending_until: vec![0.0; nodes],
            receiving_until: vec![0.0; nodes],
            sent_mb: vec![0.0; nodes],
            received_mb: vec![0.0; nodes],
            longest_queue_s: 0.0,
            longest_incast_s: 0.0,
        }
    }

    /// When a read of a tier would end.
    pub fn tier_done(&self, node: u32, tier: usize, mb: f64, at: f64) -> f64 {
        self.reading_until[node as usize * self.tiers + tier].max(at) + mb * self.read_s_per_mb[tier]
    }

    /// Reads a tier.
    pub fn read_tier(&mut self, node: u32, tier: usize, mb: f64, at: f64) -> f64 {
        let until = &mut self.reading_until[node as usize * self.tiers + tier];
        self.longest_queue_s = self.longest_queue_s.max(*until - at);
        *until = until.max(at) + mb * self.read_s_per_mb[tier];
        *until
    }

    /// Sends what `home` has in memory at `at`; returns when it is there.
    pub fn send(&mut self, home: u32, node: u32, mb: f64, at: f64) -> f64 {
        let seconds = mb * self.network_s_per_mb;
        let (sending, receiving) = (
            &mut self.sending_until[home as usize],
            &mut self.receiving_until[node as usize],
        );
        self.longest_queue_s = self.longest_queue_s.max(*sending - at);
        self.longest_incast_s = self.longest_incast_s.max(*receiving - at);
        let done = at.max(*sending).max(*receiving) + seconds;
        *sending = sending.max(at) + seconds;
        *receiving = receiving.max(at) + seconds;
        self.sent_mb[home as usize] += mb;
        self.received_mb[node as usize] += mb;
        done
    }

    /// Whether a tier's writes are not too far behind to take another.
    pub fn can_write(&self, node: u32, tier: usize, at: f64) -> bool {
        self.write_s_per_mb[tier] == 0.0
            || self.writing_until[node as usize * self.tiers + tier] - at <= self.write_behind_s[tier]
    }

    /// Writes to a tier, behind the reader's back.
    pub fn write_tier(&mut self, node: u32, tier: usize, mb: f64, at: f64) -> f64 {
        let until = &mut self.writing_until[node as usize * self.tiers + tier];
        *until = until.max(at) + mb * self.write_s_per_mb[tier];
        *until
    }

    /// By node.
    pub fn sent_mb(&self) -> &[f64] {
        &self.sent_mb
    }

    /// By node.
    pub fn received_mb(&self) -> &[f64] {
        &self.received_mb
    }

    /// The longest that a request found the queue of a tier, or of a node that was to send.
    pub fn longest_queue_s(&self) -> f64 {
        self.longest_queue_s
    }

    /// The longest that a request found the queue of what its own node was to receive.
    pub fn longest_incast_s(&self) -> f64 {
        self.longest_incast_s
    }
}
