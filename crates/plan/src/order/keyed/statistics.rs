//! The tests that `keyed` has to pass, and that worse permutations fail.
//!
//! A *family* gives a permutation for each (seed, epoch). [`battery`] takes many of them and returns, by name, how many standard deviations
//! each statistic lies from what independent uniform permutations would give. Everything is seeded, so a verdict never
//! changes by itself.

use super::*;

/// What is tested: a permutation of `0..samples` for a (seed, epoch).
struct Family<'a> {
    samples: u32,
    /// Size of the inner half, where structure would show: positions and samples this far apart share it.
    half: u32,
    permutation: &'a dyn Fn(u64, u32) -> Vec<u32>,
}

fn family_of<const N: usize>(samples: u32) -> impl Fn(u64, u32) -> Vec<u32> {
    move |seed, epoch| {
        let network = Feistel::<N>::new(u64::from(samples), key(&[seed, u64::from(epoch), u64::from(samples)]));
        (0..u64::from(samples))
            .map(|position| network.forward(position) as u32)
            .collect()
    }
}

fn half_of(samples: u32) -> u32 {
    1 << Feistel::<ROUNDS>::new(u64::from(samples), 0).bits
}

fn keyed(samples: u32) -> impl Fn(u64, u32) -> Vec<u32> {
    move |seed, epoch| match Keyed::new(seed, epoch.into(), u64::from(samples)) {
        Keyed::Small(table) => (0..u64::from(samples))
            .map(|position| table.sample_at(position) as u32)
            .collect(),
        Keyed::Feistel(network) => (0..u64::from(samples))
            .map(|position| network.forward(position) as u32)
            .collect(),
    }
}

/// Counts in a table, and how far their chi-square lies from its mean in standard deviations.
struct Table2 {
    counts: Vec<f64>,
    rows: usize,
}

impl Table2 {
    fn new(rows: usize, columns: usize) -> Self {
        Self {
            counts: vec![0.0; rows * columns],
            rows,
        }
    }

    fn add(&mut self, row: usize, column: usize) {
        let columns = self.counts.len() / self.rows;
        self.counts[row * columns + column] += 1.0;
    }

    /// Independence of rows and columns, whose totals are fixed by the permutation.
    fn z(&self) -> f64 {
        let columns = self.counts.len() / self.rows;
        let row = |r: usize| self.counts[r * columns..(r + 1) * columns].iter().sum::<f64>();
        let column = |c: usize| self.counts.iter().skip(c).step_by(columns).sum::<f64>();
        let (rows, cols): (Vec<f64>, Vec<f64>) =
            ((0..self.rows).map(row).collect(), (0..columns).map(column).collect());
        let total: f64 = rows.iter().sum();
        let cell = |at: usize| {
            let expected = rows[at / columns] * cols[at % columns] / total;
            (self.counts[at] - expected).powi(2) / expected
        };
        let chi2: f64 = (0..self.counts.len()).map(cell).sum();
        let freedom = ((self.rows - 1).max(1) * (columns - 1)) as f64;
        (chi2 - freedom) / (2.0 * freedom).sqrt()
    }
}

/// Counts against given expectations.
fn chi_square_z(counts: &[f64], expected: impl Fn(usize) -> f64) -> f64 {
    let chi2: f64 = counts
        .iter()
        .enumerate()
        .map(|(at, count)| (count - expected(at)).powi(2) / expected(at))
        .sum();
    let freedom = (counts.len() - 1) as f64;
    (chi2 - freedom) / (2.0 * freedom).sqrt()
}

fn poisson_z(count: f64, expected: f64) -> f64 {
    (count - expected) / expected.sqrt()
}

/// Pearson correlation of two permutations of the same numbers, which is Spearman's of their ranks.
fn correlation(pairs: impl Iterator<Item = (u32, u32)>, samples: u32) -> f64 {
    let n = f64::from(samples);
    let (mean, variance) = ((n - 1.0) / 2.0, (n * n - 1.0) / 12.0);
    pairs
        .map(|(a, b)| (f64::from(a) - mean) * (f64::from(b) - mean))
        .sum::<f64>()
        / (n * variance)
}

fn inverse(permutation: &[u32]) -> Vec<u32> {
    let mut inverse = vec![u32::MAX; permutation.len()];
    for (position, &sample) in permutation.iter().enumerate() {
        assert_eq!(inverse[sample as usize], u32::MAX, "sample {sample} twice");
        inverse[sample as usize] = position as u32;
    }
    inverse
}

/// Statistics of single permutations, over `seeds` x `epochs` of them.
fn alone(family: &Family, seeds: u64, epochs: u32) -> Vec<(String, f64)> {
    let n = family.samples as usize;
    let buckets = 32.min(n / 4);
    let lags = [1, 2, 7, family.half as usize];
    let (mut places, mut low) = (Table2::new(buckets, buckets), Table2::new(8, 8));
    let (mut fixed, mut adjacent, mut serial) = (0.0, 0.0, [0.0; 4]);
    let mut steps = vec![vec![0.0; 16]; lags.len()];
    let (mut same_inner, mut same_outer, mut pairs) = (0.0, 0.0, 0.0);
    for seed in 0..seeds {
        for epoch in 0..epochs {
            let permutation = (family.permutation)(seed, epoch);
            inverse(&permutation);
            for (position, &sample) in permutation.iter().enumerate() {
                places.add(position * buckets / n, sample as usize * buckets / n);
                low.add(position & 7, sample as usize & 7);
                fixed += f64::from(u8::from(position == sample as usize));
            }
            adjacent += permutation
                .windows(2)
                .filter(|pair| pair[0].abs_diff(pair[1]) == 1)
                .count() as f64;
            for (at, &lag) in lags.iter().enumerate() {
                let shifted = |p: usize| permutation[(p + lag) % n];
                serial[at] += correlation((0..n).map(|p| (permutation[p], shifted(p))), family.samples);
                for (p, &sample) in permutation.iter().enumerate() {
                    let step = (shifted(p) as usize + n - sample as usize) % n;
                    steps[at][(step - 1) * 16 / (n - 1)] += 1.0;
                }
            }
            // Two positions with the same inner half: does the network keep them together in either half?
            for p in 0..n {
                for other in (1..4)
                    .map(|j| p + j * family.half as usize)
                    .take_while(|&other| other < n)
                {
                    let (a, b) = (permutation[p], permutation[other]);
                    pairs += 1.0;
                    same_inner += f64::from(u8::from(a % family.half == b % family.half));
                    same_outer += f64::from(u8::from(a / family.half == b / family.half));
                }
            }
        }
    }
    let (runs, size) = (f64::from(epochs) * seeds as f64, n as f64);
    let mut found = vec![
        ("places".into(), places.z()),
        ("low bits".into(), low.z()),
        ("fixed points".into(), poisson_z(fixed, runs)),
        (
            "adjacent pairs".into(),
            poisson_z(adjacent, 2.0 * runs * (size - 1.0) / size),
        ),
        (
            "same inner half".into(),
            poisson_z(same_inner, pairs * together(n, family.half as usize, |s, h| s % h)),
        ),
        (
            "same outer half".into(),
            poisson_z(same_outer, pairs * together(n, family.half as usize, |s, h| s / h)),
        ),
    ];
    for (at, lag) in lags.iter().enumerate() {
        // The circular correlation of a random permutation has mean -1/(n-1) and variance about 1/n.
        found.push((
            format!("serial, lag {lag}"),
            (serial[at] / runs + 1.0 / (size - 1.0)) * (runs * size).sqrt(),
        ));
        let width = |bucket: usize| ((bucket + 1) * (n - 1)).div_ceil(16) - (bucket * (n - 1)).div_ceil(16);
        let expected = |bucket: usize| runs * size * width(bucket) as f64 / (size - 1.0);
        found.push((format!("steps, lag {lag}"), chi_square_z(&steps[at], expected)));
    }
    found
}

/// How likely two different samples share a half.
fn together(n: usize, half: usize, part: fn(usize, usize) -> usize) -> f64 {
    let mut sizes = vec![0.0; n];
    (0..n).for_each(|sample| sizes[part(sample, half)] += 1.0);
    sizes.iter().map(|size: &f64| size * (size - 1.0)).sum::<f64>() / (n as f64 * (n as f64 - 1.0))
}

/// Statistics of two permutations that should have nothing to do with each other.
fn related(family: &Family, name: &str, pairs: impl Iterator<Item = ((u64, u32), (u64, u32))>) -> Vec<(String, f64)> {
    let n = family.samples as usize;
    let buckets = 32.min(n / 4);
    let mut places = Table2::new(buckets, buckets);
    let (mut same, mut runs, mut of_samples, mut of_positions) = (0.0, 0.0, 0.0, 0.0);
    let mut steps = vec![0.0; 64.min(n / 4)];
    for (one, other) in pairs {
        let (a, b) = (
            (family.permutation)(one.0, one.1),
            (family.permutation)(other.0, other.1),
        );
        let (at_a, at_b) = (inverse(&a), inverse(&b));
        for (&p, &q) in at_a.iter().zip(&at_b) {
            places.add(p as usize * buckets / n, q as usize * buckets / n);
            same += f64::from(u8::from(p == q));
            let step = (q as usize + n - p as usize) % n;
            let cells = steps.len();
            steps[step * cells / n] += 1.0;
        }
        of_samples += correlation(a.iter().copied().zip(b.iter().copied()), family.samples).powi(2) * (n as f64 - 1.0);
        of_positions +=
            correlation(at_a.iter().copied().zip(at_b.iter().copied()), family.samples).powi(2) * (n as f64 - 1.0);
        runs += 1.0;
    }
    let cells = steps.len();
    let width = |cell: usize| (((cell + 1) * n).div_ceil(cells) - (cell * n).div_ceil(cells)) as f64;
    vec![
        (format!("{name}: places"), places.z()),
        (format!("{name}: same position"), poisson_z(same, runs)),
        (
            format!("{name}: distance travelled"),
            chi_square_z(&steps, |cell| runs * width(cell)),
        ),
        (
            format!("{name}: correlation of samples"),
            (of_samples - runs) / (2.0 * runs).sqrt(),
        ),
        (
            format!("{name}: correlation of positions"),
            (of_positions - runs) / (2.0 * runs).sqrt(),
        ),
    ]
}

fn battery(family: &Family, seeds: u64, epochs: u32) -> Vec<(String, f64)> {
    let all = || (0..seeds).flat_map(|seed| (0..epochs).map(move |epoch| (seed, epoch)));
    let mut found = alone(family, seeds, epochs);
    found.extend(related(
        family,
        "next epoch",
        all().map(|(seed, epoch)| ((seed, epoch), (seed, epoch + 1))),
    ));
    found.extend(related(
        family,
        "next seed",
        all().map(|(seed, epoch)| ((seed, epoch), (seed + 1, epoch))),
    ));
    found.extend(related(
        family,
        "seed for epoch",
        all().map(|(seed, epoch)| ((seed, epoch + 1), (seed + 1, epoch))),
    ));
    found
}

/// The statistic that lies furthest out.
fn worst(found: &[(String, f64)]) -> (&str, f64) {
    let furthest = found
        .iter()
        .max_by(|a, b| a.1.abs().total_cmp(&b.1.abs()))
        .expect("a battery is not empty");
    (&furthest.0, furthest.1)
}

/// Chi-squares have a longer tail than the normal: 5 deviations of the smallest table used here are passed once in some 10^4 times.
const TOLERATED: f64 = 5.0;

fn passes(samples: u32, permutation: &dyn Fn(u64, u32) -> Vec<u32>, seeds: u64) {
    let found = battery(
        &Family {
            samples,
            half: half_of(samples),
            permutation,
        },
        seeds,
        3,
    );
    let (name, z) = worst(&found);
    assert!(
        z.abs() < TOLERATED,
        "{samples} samples, {seeds} seeds: {name} is {z:.1} deviations out; all: {found:.1?}"
    );
}

fn fails(what: &str, permutation: &dyn Fn(u64, u32) -> Vec<u32>) {
    let samples = 4096;
    let found = battery(
        &Family {
            samples,
            half: half_of(samples),
            permutation,
        },
        40,
        3,
    );
    let (name, z) = worst(&found);
    assert!(
        z.abs() > 3.0 * TOLERATED,
        "{what} passes: worst is {name} at {z:.1} deviations"
    );
}

#[test]
fn shuffled_tables_pass() {
    passes(100, &keyed(100), 3000);
    passes(1000, &keyed(1000), 400);
    passes(SMALL as u32, &keyed(SMALL as u32), 8);
}

#[test]
fn networks_pass_from_the_first_size_they_are_used_for() {
    passes(SMALL as u32 + 1, &keyed(SMALL as u32 + 1), 10);
    passes(98_765, &keyed(98_765), 6);
    passes(1_000_003, &keyed(1_000_003), 1);
}

#[test]
fn networks_would_pass_at_a_sixteenth_of_that_size() {
    passes(4096, &family_of::<ROUNDS>(4096), 150);
    passes(5003, &family_of::<ROUNDS>(5003), 120);
}

#[test]
fn networks_of_fewer_rounds_fail() {
    fails("two rounds", &family_of::<2>(4096));
    fails("four rounds", &|seed, epoch| family_of::<4>(4096)(seed, epoch));
}

#[test]
fn bad_permutations_fail() {
    let good = family_of::<ROUNDS>(4096);
    fails("the identity", &|_, _| (0..4096).collect());
    fails("an affine map", &|seed, epoch| {
        let (factor, shift) = (key(&[seed, u64::from(epoch), 1]) | 1, key(&[seed, u64::from(epoch), 2]));
        (0..4096u64)
            .map(|p| (p.wrapping_mul(factor).wrapping_add(shift) % 4096) as u32)
            .collect()
    });
    fails("a shuffle inside a window", &|seed, epoch| {
        let window = family_of::<ROUNDS>(512)(seed, epoch);
        (0..4096).map(|p| p / 512 * 512 + window[p as usize % 512]).collect()
    });
    fails("the same in every epoch", &|seed, _| good(seed, 0));
    fails("rotated from epoch to epoch", &|seed, epoch| {
        let mut list = good(seed, 0);
        list.rotate_left(1234 * epoch as usize);
        list
    });
    fails("seed plus epoch as the key", &|seed, epoch| {
        good(seed + u64::from(epoch), 0)
    });
    fails("one sample in fifty left where it was", &|seed, epoch| {
        let mut list = good(seed, epoch);
        let at = inverse(&list);
        (0..4096).step_by(50).for_each(|p| list.swap(p, at[p] as usize));
        list
    });
}

/// All permutations of a handful of samples turn up equally often, over seeds and over epochs.
#[test]
fn every_permutation_of_a_few_samples_is_as_likely() {
    for (samples, runs) in [(2u64, 20_000u32), (3, 30_000), (4, 60_000), (5, 120_000)] {
        let permutations = (1..=samples as usize).product::<usize>();
        for over_epochs in [false, true] {
            let mut counts = vec![0.0; permutations];
            for run in 0..runs {
                let (seed, epoch) = if over_epochs { (7, run) } else { (u64::from(run), 0) };
                let Keyed::Small(table) = Keyed::new(seed, epoch.into(), samples) else {
                    panic!("few samples are a table")
                };
                let list: Vec<u64> = (0..samples).map(|position| table.sample_at(position)).collect();
                counts[rank_of(&list)] += 1.0;
            }
            let z = chi_square_z(&counts, |_| f64::from(runs) / permutations as f64);
            assert!(
                z.abs() < TOLERATED,
                "{samples} samples, over epochs: {over_epochs}: {z:.1}; {counts:?}"
            );
        }
    }
}

/// The number of a permutation in lexicographic order.
fn rank_of(list: &[u64]) -> usize {
    let smaller_after = |at: usize| list[at + 1..].iter().filter(|&&later| later < list[at]).count();
    (0..list.len()).fold(0, |rank, at| rank * (list.len() - at) + smaller_after(at))
}
