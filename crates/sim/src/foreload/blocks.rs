//! What one request brings: a whole object, or the samples of a shard that begin in the same cell of the engine's grid.

use crate::{Setup, Sizes};
use foreload_plan::settings::Settings;

const MB: f64 = 1_048_576.0;

/// A data set, cut into blocks.
#[derive(Debug)]
pub struct Blocks<'a> {
    sizes: &'a Sizes,
    /// By sample its block, and the first sample of each block and of none; nothing where every sample is an object.
    of: Vec<u32>,
    first: Vec<u32>,
    /// Bytes between two samples that are cheaper to read than to ask around.
    gap_bytes: u64,
    cell_bytes: u64,
}

impl<'a> Blocks<'a> {
    /// The data set's.
    pub fn new(setup: &Setup<'a>) -> Self {
        let (sizes, engine) = (setup.sizes, Settings::default());
        let (mut of, mut first) = (Vec::new(), Vec::new());
        let cell = |sample: usize, (object, offset): (u64, u64)| {
            let shares = bytes(sizes.mb[sample]) < engine.coalesce_bytes;
            shares.then_some((object, offset / engine.coalesce_bytes))
        };
        let mut last = None;
        for (sample, place) in sizes.places.iter().flatten().enumerate() {
            let cell = cell(sample, *place);
            if cell.is_none() || cell != last {
                first.push(sample as u32);
            }
            last = cell;
            of.push(first.len() as u32 - 1);
        }
        if !of.is_empty() {
            first.push(of.len() as u32);
        }
        Self {
            sizes,
            of,
            first,
            gap_bytes: engine.gap_bytes,
            cell_bytes: engine.coalesce_bytes,
        }
    }

    /// How many.
    pub fn count(&self) -> u32 {
        match self.of.is_empty() {
            true => self.sizes.samples(),
            false => self.first.len() as u32 - 1,
        }
    }

    /// The block of a sample.
    pub fn number(&self, sample: u32) -> u32 {
        self.of.get(sample as usize).copied().unwrap_or(sample)
    }

    /// The samples of a block.
    pub fn samples(&self, block: u32) -> std::ops::Range<u32> {
        match self.of.is_empty() {
            true => block..block + 1,
            false => self.first[block as usize]..self.first[block as usize + 1],
        }
    }

    /// Bytes from the first of a block to its last.
    pub fn len(&self, block: u32) -> u64 {
        let samples = self.samples(block);
        let last = samples.end as usize - 1;
        let from = |sample: usize| self.sizes.places.as_ref().map_or(0, |places| places[sample].1);
        from(last) + bytes(self.sizes.mb[last]) - from(samples.start as usize)
    }

    /// MB of the requests for some samples of one block, in their order.
    pub fn requests(&self, samples: impl IntoIterator<Item = u32>) -> Vec<f64> {
        let mut runs: Vec<(u64, u64)> = Vec::new();
        let Some(places) = &self.sizes.places else {
            return samples.into_iter().map(|sample| self.sizes.of(sample)).collect();
        };
        for sample in samples {
            let (_, from) = places[sample as usize];
            let to = from + bytes(self.sizes.mb[sample as usize]);
            match runs.last_mut() {
                Some((_, end)) if (*end..=*end + self.gap_bytes).contains(&from) => *end = to,
                _ => runs.push((from, to)),
            }
        }
        runs.iter().map(|(from, to)| (to - from) as f64 / MB).collect()
    }

    /// Whether the gap between two samples of a block, in their order, is one that a request reads over.
    pub fn are_near(&self, first: u32, second: u32) -> bool {
        self.sizes.places.as_ref().is_some_and(|places| {
            let end = places[first as usize].1 + bytes(self.sizes.mb[first as usize]);
            places[second as usize].1.saturating_sub(end) <= self.gap_bytes
        })
    }

    /// MB that a request for neighbours may bring, at most; 0 where every sample is an object.
    pub fn cell_mb(&self) -> f64 {
        match self.of.is_empty() {
            true => 0.0,
            false => self.cell_bytes as f64 / MB,
        }
    }
}

fn bytes(mb: f32) -> u64 {
    ((f64::from(mb) * MB) as u64).max(1)
}
