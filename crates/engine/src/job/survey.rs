//! What a job has to know of all its samples before it starts: how large they are, the order if that is a list, and how often each node reads them if that decides who keeps them.
//!
//! It takes time in proportion to the data set, and is done on a thread of its own.

use super::sample_bytes;
use crate::agent::aside::Work;
use crate::calls::Attach;
use crate::protocol::Trouble;
use crate::streams::{Indexes, Streams};
use foreload_plan::job::Largest;
use foreload_plan::order::Order;
use foreload_plan::placement::frequency::Ranking;
use foreload_plan::policy::Policy;
use foreload_plan::spec::OrderKind;
use foreload_plan::split::Split;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

/// The client is asked for after so many samples: some milliseconds.
const ASK_EVERY: usize = 1 << 18;

/// All samples of a job, looked at once.
pub struct Survey {
    /// The attachment.
    pub attach: Attach,
    /// Its order.
    pub order: Order,
    /// What each node reads most often, where the policy goes by that and the order tells.
    pub ranking: Option<Arc<Ranking>>,
    /// The largest sample that must fit, and its bytes.
    largest: (u64, u64),
    /// Whether any sample is too large for the memory, and is to be left out.
    leaves_out: bool,
    /// Bytes of all samples.
    total_bytes: u64,
    /// Samples in a rank's batch at most, or in the data set, and the bytes of as many of the largest that fit the memory.
    together: (usize, u64),
    /// The same, as memory holds them.
    reserved: Largest,
}

impl Survey {
    /// Looks at all samples.
    ///
    /// # Errors
    /// `invalid` when the order doesn't hold together, `cancelled` when the client leaves.
    pub(crate) fn of(attach: Attach, indexes: &Indexes, work: &Work) -> Result<Self, Trouble> {
        let order = Order::new(&attach.order)?;
        let most = sample_bytes(&attach);
        let size = attach.order.global_batch.div_ceil(attach.world.max(1)).max(1) as usize;
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
        let ranking = rank(&attach, &order, work)?.map(Arc::new);
        let together = || lengths.iter().map(|&Reverse(len)| len);
        Ok(Survey {
            attach,
            order,
            ranking,
            largest,
            leaves_out,
            total_bytes,
            together: (lengths.len(), together().fold(0, u64::saturating_add)),
            reserved: Largest::of(together()),
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

    /// The largest samples of the data set, should they meet in one batch: no rank reads a larger one.
    #[must_use]
    pub fn largest_together(&self) -> Largest {
        self.reserved
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

/// Counts what each node reads. `None`: the policy doesn't go by that, or nobody knows how many epochs there are, or what is read in them.
fn rank(attach: &Attach, order: &Order, work: &Work) -> Result<Option<Ranking>, Trouble> {
    let Some(epochs) = attach.epochs.filter(|_| attach.policy == Policy::Frequency) else {
        return Ok(None);
    };
    if matches!(attach.order.kind, OrderKind::Supplied { .. }) {
        return Ok(None);
    }
    let split = match attach.uneven {
        true => Split::weighted(order, attach.world)?,
        false => Split::new(order, attach.world)?,
    };
    let is_elsewhere = |rank: u32| u64::from(!attach.ranks.contains(&rank));
    let nodes = attach.nodes.clone();
    let nodes = nodes.unwrap_or_else(|| (0..attach.world).map(is_elsewhere).collect());
    let at = |done, total| work.at("counting reads", done, total);
    Ranking::new(order, &split, &nodes, epochs, at).map(Some)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::node::{LONG, Node, run};

    /// Looks at samples of these lengths, read in batches of four with 1,000 bytes for samples.
    fn survey(node: &Node, lengths: &[u64], change: impl FnOnce(&mut Attach)) -> (Survey, Streams) {
        let number = node.dataset("a", lengths);
        let mut attach = node.attachment(number);
        (attach.ram_bytes, attach.batch_bytes) = (1100, 100);
        change(&mut attach);
        let streams = Streams::new(vec![node.opened(number)]);
        let (_client, work) = Work::unwatched();
        let survey = Survey::of(attach, &streams.indexes(), &work).expect("it holds together");
        (survey, streams)
    }

    #[test]
    fn a_job_needs_three_batches_and_its_largest_sample() {
        run(LONG, |node| async move {
            let lengths = [10, 400, 20, 400, 30, 40];
            let (one, streams) = survey(&node, &lengths, |_| {});
            assert_eq!((one.largest, one.total_bytes, one.leaves_out), ((1, 400), 900, false));
            assert_eq!(one.least_bytes(&streams).expect("it fits"), 3 * 4 * 150 + 400);
            assert_eq!(one.most_bytes(), u64::MAX);
            let (part, streams) = survey(&node, &lengths, |it| {
                (it.world, it.ranks, it.order.global_batch) = (4, vec![0, 3], 8);
            });
            assert_eq!(part.least_bytes(&streams).expect("it fits"), 3 * 4 * 150 + 400);
        });
    }

    #[test]
    fn reads_are_counted_where_the_policy_the_epochs_and_the_order_tell_them() {
        run(LONG, |node| async move {
            let frequent = |it: &mut Attach| (it.policy, it.epochs) = (Policy::Frequency, Some(3));
            let counted = |change: &dyn Fn(&mut Attach)| survey(&node, &[10; 24], change).0.ranking;
            let alone = counted(&frequent).expect("counted");
            assert_eq!(alone.of(0).len(), 24);
            let nodes = counted(&|it| {
                frequent(it);
                (it.world, it.ranks, it.nodes) = (2, vec![1], Some(vec![8, 9]));
            });
            let nodes = nodes.expect("counted");
            assert_eq!([nodes.node_of(0), nodes.node_of(1)], [Some(8), Some(9)]);
            assert!(nodes.of(8).len() < 24 && !nodes.of(9).is_empty());
            assert_eq!(counted(&|it| it.epochs = Some(3)), None, "another policy");
            assert_eq!(
                counted(&|it| it.policy = Policy::Frequency),
                None,
                "nobody says how many epochs"
            );
            let supplied = counted(&|it| {
                frequent(it);
                it.order.kind = OrderKind::Supplied { length: 24 };
            });
            assert_eq!(supplied, None, "nobody knows the order");
        });
    }

    #[test]
    fn a_sample_as_large_as_the_memory_fits_and_a_larger_one_is_refused_or_left_out() {
        run(LONG, |node| async move {
            let (fits, streams) = survey(&node, &[1000, 1], |it| it.skip_large = true);
            assert!(fits.least_bytes(&streams).is_ok() && !fits.leaves_out);
            let (large, streams) = survey(&node, &[5, 1001, 1000], |_| {});
            let trouble = large.least_bytes(&streams).expect_err("too large");
            assert_eq!((trouble.kind.as_str(), trouble.sample), ("no-memory", Some(1)));
            let told = "has 1001 bytes and doesn't fit the memory budget of 1100 bytes (1000 without the batch arena)";
            assert!(trouble.message.contains(told), "{}", trouble.message);
            let (left_out, streams) = survey(&node, &[5, 1001, 1000], |it| it.skip_large = true);
            assert_eq!((left_out.largest, left_out.most_bytes()), ((2, 1000), 1000));
            assert!(left_out.leaves_out && left_out.least_bytes(&streams).is_ok());
        });
    }

    #[test]
    fn who_gives_the_memory_that_an_error_names_can_go_on() {
        run(LONG, |node| async move {
            let lengths = [7_000_000, 70_000_000];
            let refused = |ram_bytes: u64, batch_bytes: u64| {
                let change = |it: &mut Attach| (it.ram_bytes, it.batch_bytes) = (ram_bytes, batch_bytes);
                let (survey, streams) = survey(&node, &lengths, change);
                survey.least_bytes(&streams).err().map(|trouble| trouble.message)
            };
            let told = refused(8_000_000, 1_000_000).expect("too large");
            assert!(told.contains("ram=\"81MB\""), "{told}");
            assert_eq!(
                refused(81_000_000, 81_000_000 / 8),
                None,
                "with the default share for batches"
            );
            let told = refused(80_000_000, 20_000_000).expect("too large");
            assert!(told.contains("ram=\"91MB\""), "{told}");
            assert_eq!(refused(91_000_000, 20_000_000), None);
        });
    }

    #[test]
    fn the_largest_samples_that_may_meet_in_a_batch_are_measured_together() {
        run(LONG, |node| async move {
            let lengths = [10, 300, 200, 20, 300, 200, 1];
            let (fits, _) = survey(&node, &lengths, |_| {});
            assert_eq!((fits.together, fits.warning_of_batches()), ((4, 1000), None));
            let (beyond, _) = survey(&node, &lengths, |it| it.ram_bytes = 1099);
            let warning = beyond.warning_of_batches().expect("999 are left for samples");
            let told = "the largest 4 samples have 1000 bytes, and samples have 999 of the memory budget of 1099 bytes";
            assert!(
                warning.starts_with(told) && warning.contains("ram=\"2MB\""),
                "{warning}"
            );
            let (two_ranks, _) = survey(&node, &lengths, |it| (it.world, it.ranks) = (2, vec![0, 1]));
            assert_eq!(two_ranks.together, (2, 600));
            let (few, _) = survey(&node, &[3, 2], |_| {});
            assert_eq!(few.together, (2, 5));
            let (fitting, _) = survey(&node, &[3, 1001, 1000], |it| it.skip_large = true);
            assert_eq!(fitting.together, (2, 1003), "none that the memory can't hold");
        });
    }

    #[test]
    fn whoever_waits_is_told_and_work_ends_with_its_client() {
        run(LONG, |node| async move {
            let number = node.dataset("a", &[1; 8]);
            let indexes = Streams::new(vec![node.opened(number)]).indexes();
            let (client, work) = Work::unwatched();
            assert!(Survey::of(node.attachment(number), &indexes, &work).is_ok());
            {
                let told = work.report.borrow();
                assert_eq!(
                    (told.step.as_str(), told.done, told.total),
                    ("looking at sizes", 0, Some(8))
                );
            }
            drop(client);
            let ended = Survey::of(node.attachment(number), &indexes, &work).err();
            assert_eq!(ended.map(|trouble| trouble.kind).as_deref(), Some("cancelled"));
        });
    }
}
