//! What a job has to know of all its samples before it starts: how large they are, and the order if that is a list.
//!
//! It takes time in proportion to the data set, and is done on a thread of its own.

use super::sample_bytes;
use crate::agent::aside::Work;
use crate::calls::Attach;
use crate::protocol::Trouble;
use crate::streams::{Indexes, Streams};
use foreload_plan::order::Order;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// The client is asked for after so many samples: some milliseconds.
const ASK_EVERY: usize = 1 << 18;

/// All samples of a job, looked at once.
pub struct Survey {
    /// The attachment.
    pub attach: Attach,
    /// Its order.
    pub order: Order,
    /// The largest sample that must fit, and its bytes.
    largest: (u64, u64),
    /// Whether any sample is too large for the memory, and is to be left out.
    leaves_out: bool,
    /// Bytes of all samples.
    total_bytes: u64,
    /// Samples in a rank's batch at most, or in the data set, and the bytes of as many of the largest that fit the memory.
    together: (usize, u64),
}

impl Survey {
    /// Looks at all samples.
    ///
    /// # Errors
    /// `invalid` when the order doesn't hold together, `cancelled` when the client leaves.
    pub(crate) fn of(attach: Attach, indexes: &Indexes, work: &Work) -> Result<Self, Trouble> {
        let order = Order::new(&attach.order).map_err(|e| Trouble::new("invalid", e.to_string()))?;
        let most = sample_bytes(&attach);
        let size = (attach.order.global_batch / attach.world.max(1)).max(1) as usize;
        let size = size.min(usize::try_from(indexes.len()).unwrap_or(usize::MAX));
        let (mut largest, mut total_bytes, mut leaves_out) = ((0, 0), 0u64, false);
        // The largest so far, the least of them on top: a copy of all lengths would be outside the budget.
        let mut lengths = BinaryHeap::with_capacity(size + 1);
        for (at, len) in indexes.lengths().enumerate() {
            if at % ASK_EVERY == 0 {
                work.at("looking at sizes", at as u64, indexes.len())?;
            }
            total_bytes = total_bytes.saturating_add(len);
            if attach.skip_large && len > most {
                leaves_out = true;
            } else if len > largest.1 {
                largest = (at as u64, len);
            }
            let is_among = lengths.len() < size || lengths.peek().is_some_and(|&Reverse(least)| least < len);
            if len <= most && is_among {
                lengths.push(Reverse(len));
                if lengths.len() > size {
                    lengths.pop();
                }
            }
        }
        let together = lengths
            .iter()
            .map(|Reverse(len)| len)
            .fold(0, |sum: u64, &len| sum.saturating_add(len));
        Ok(Survey {
            attach,
            order,
            largest,
            leaves_out,
            total_bytes,
            together: (lengths.len(), together),
        })
    }

    /// What the job needs to go on at all: a batch in use, one that is waited for and one behind it, and the largest sample.
    ///
    /// # Errors
    /// `no-memory` for a sample that can't fit: at the start, not in the middle of an epoch, unless such samples are to be left out.
    pub fn least_bytes(&self, streams: &Streams) -> Result<u64, Trouble> {
        let (attach, (largest, len)) = (&self.attach, self.largest);
        if len > sample_bytes(attach) {
            return Err(too_large(attach, streams, largest));
        }
        let batch = u64::from(attach.order.global_batch) * attach.ranks.len() as u64 / u64::from(attach.world.max(1));
        let batches = (self.total_bytes / streams.len().max(1)).saturating_mul(3 * batch.max(1));
        Ok(batches.saturating_add(len))
    }

    /// Longer samples are empty to the plan: what the memory can hold, where some are longer.
    #[must_use]
    pub fn most_bytes(&self) -> u64 {
        if self.leaves_out {
            sample_bytes(&self.attach)
        } else {
            u64::MAX
        }
    }

    /// Says when the largest samples of the data set, should they meet in one batch, don't fit the memory together.
    #[must_use]
    pub fn warning_of_batches(&self) -> Option<String> {
        let (attach, (count, bytes)) = (&self.attach, self.together);
        let most_bytes = sample_bytes(attach);
        (bytes > most_bytes).then(|| {
            format!(
                "the largest {count} samples have {bytes} bytes, and samples have {most_bytes} of the memory budget of {} bytes: a batch with all of them \
                 would end the run; give cache=Cache(ram=\"{}MB\") or more, or smaller batches",
                attach.ram_bytes,
                (bytes + attach.batch_bytes.max(bytes / 7)).div_ceil(1_000_000) + 1
            )
        })
    }
}

/// Why a sample can't be had, and what would help.
pub(super) fn too_large(attach: &Attach, streams: &Streams, sample: u64) -> Trouble {
    let (len, most_bytes) = (streams.length(sample), sample_bytes(attach));
    // As much for batches as now, or the eighth that is the default, and a little over.
    let enough_mb = (len + attach.batch_bytes.max(len / 7)).div_ceil(1_000_000) + 1;
    let message = format!(
        "sample {sample} ({}) has {len} bytes and doesn't fit the memory budget of {} bytes ({most_bytes} without the batch arena); give \
         cache=Cache(ram=\"{enough_mb}MB\") or more, leave it out with data.filter(lambda key, label, length: length <= {most_bytes}), or give \
         on_error=foreload.skip()",
        streams.url_of(sample),
        attach.ram_bytes
    );
    Trouble {
        sample: Some(sample),
        ..Trouble::new("no-memory", message)
    }
}
