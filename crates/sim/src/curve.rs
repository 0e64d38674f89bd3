//! t(gamma): how much the source delivers in total when gamma nodes read at once.

use crate::Error;
use std::collections::BTreeMap;

/// Aggregate throughput by number of readers, in MB/s.
///
/// Between the given points it is linear, before the first and beyond the last it is constant: a measured file system rarely
/// gets faster than the largest measurement. (Paper 001 infers missing points by linear regression.)
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    by_readers: Vec<f64>,
}

impl Curve {
    /// Tabulates the curve for up to `nodes` readers.
    ///
    /// # Errors
    /// When a key is not a number of readers or a throughput is not positive.
    pub fn new(points: &BTreeMap<String, f64>, nodes: u32) -> Result<Self, Error> {
        let key = "source.throughput_mb_s";
        let mut sorted = Vec::with_capacity(points.len());
        for (readers, mb_s) in points {
            let parsed: u32 = readers.parse().ok().filter(|n| *n > 0).ok_or_else(|| {
                Error::invalid(
                    key,
                    format!("{readers:?} is not a number of readers; write {{ 1 = 66, 4 = 146 }}"),
                )
            })?;
            if mb_s.is_nan() || *mb_s <= 0.0 {
                return Err(Error::invalid(
                    key,
                    format!("{mb_s} MB/s for {readers} readers must be positive"),
                ));
            }
            sorted.push((f64::from(parsed), *mb_s));
        }
        sorted.sort_by(|a, b| a.0.total_cmp(&b.0));
        if sorted.is_empty() {
            return Err(Error::invalid(key, "needs at least one point, such as { 1 = 100 }"));
        }
        let by_readers = (0..=nodes).map(|n| interpolate(&sorted, f64::from(n.max(1)))).collect();
        Ok(Self { by_readers })
    }

    /// Total MB/s with `readers` nodes reading.
    #[must_use]
    pub fn total(&self, readers: u32) -> f64 {
        self.by_readers[(readers as usize).min(self.by_readers.len() - 1)]
    }

    /// What each of so many readers gets: t(gamma)/gamma.
    #[must_use]
    pub fn share(&self, readers: u32) -> f64 {
        self.total(readers) / f64::from(readers)
    }

    /// The most that any number of readers gets.
    #[must_use]
    pub fn highest(&self) -> f64 {
        self.by_readers.iter().skip(1).copied().fold(0.0, f64::max)
    }
}

fn interpolate(points: &[(f64, f64)], at: f64) -> f64 {
    let after = points.partition_point(|p| p.0 < at);
    match (after.checked_sub(1).map(|i| points[i]), points.get(after)) {
        (_, Some(&(x, y))) if x == at => y,
        (Some((x0, y0)), Some(&(x1, y1))) => y0 + (y1 - y0) * (at - x0) / (x1 - x0),
        (None, Some(&(_, y))) | (Some((_, y)), None) => y,
        (None, None) => 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn curve(points: &[(&str, f64)], nodes: u32) -> Result<Curve, Error> {
        Curve::new(&points.iter().map(|(k, v)| ((*k).to_owned(), *v)).collect(), nodes)
    }

    #[test]
    fn it_is_linear_between_points_and_constant_beyond() {
        let c = curve(&[("2", 100.0), ("4", 200.0)], 8).expect("valid");
        let totals: Vec<f64> = (1..=8).map(|n| c.total(n)).collect();
        assert_eq!(totals, [100.0, 100.0, 150.0, 200.0, 200.0, 200.0, 200.0, 200.0]);
        assert_eq!(c.highest(), 200.0);
    }

    #[test]
    fn points_that_are_not_readers_are_refused() {
        assert!(curve(&[("zero", 1.0)], 1).is_err() && curve(&[("1", 0.0)], 1).is_err() && curve(&[], 1).is_err());
    }
}
