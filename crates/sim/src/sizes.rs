//! The size of every sample: drawn from a normal distribution, or read from a list, which may also say where in which object each lies.

use crate::{
    Error, Random,
    scenario::{Dataset, Negative},
};

/// Sizes in MB by sample, and their sum.
#[derive(Clone, Debug, PartialEq)]
pub struct Sizes {
    /// By sample id. Four bytes each keep 10^8 samples in 400 MB; seven digits are more than a model needs.
    pub mb: Vec<f32>,
    /// S.
    pub total_mb: f64,
    /// Object and first byte of each sample, where several lie in one object.
    pub places: Option<Vec<(u64, u64)>>,
}

impl Sizes {
    /// The data set's sizes.
    ///
    /// # Errors
    /// When the list can't be read, has no positive sizes, or an index was named (its reader passes the sizes in).
    pub fn new(dataset: &Dataset) -> Result<Self, Error> {
        if dataset.index.is_some() {
            return Err(Error::invalid(
                "dataset.index",
                "an index is read by the caller; pass its sizes to run_with_sizes",
            ));
        }
        match &dataset.sizes_file {
            Some(path) => Self::read(path),
            None => Ok(Self::draw(dataset)),
        }
    }

    /// Takes sizes in MB as they are.
    ///
    /// # Errors
    /// When there are none, too many, or one is not positive.
    pub fn from_mb(mb: Vec<f32>) -> Result<Self, Error> {
        if mb.is_empty() || mb.len() >= u32::MAX as usize {
            return Err(Error::invalid(
                "dataset",
                format!("{} samples can't be simulated", mb.len()),
            ));
        }
        if let Some(bad) = mb.iter().position(|s| s.is_nan() || *s <= 0.0) {
            return Err(Error::invalid(
                "dataset",
                format!("sample {bad} has size {} MB", mb[bad]),
            ));
        }
        let total_mb = mb.iter().map(|s| f64::from(*s)).sum();
        Ok(Self {
            mb,
            total_mb,
            places: None,
        })
    }

    fn read(path: &str) -> Result<Self, Error> {
        let fail = |problem: String| Error::Sizes {
            path: path.to_owned(),
            problem,
        };
        let text = std::fs::read_to_string(path).map_err(|e| fail(e.to_string()))?;
        let lines = text
            .lines()
            .enumerate()
            .map(|(i, l)| (i, l.trim()))
            .filter(|(_, l)| !l.is_empty() && !l.starts_with('#'));
        let (mut mb, mut places) = (Vec::new(), Vec::new());
        for (i, line) in lines {
            let mut words = line.split_whitespace();
            let size = words.next().and_then(|size| size.parse().ok());
            mb.push(size.ok_or_else(|| fail(format!("line {}: {line:?} is not a size in MB", i + 1)))?);
            let numbers: Result<Vec<u64>, _> = words.map(str::parse).collect();
            match numbers.as_deref() {
                Ok([]) => {}
                Ok([object, offset]) => places.push((*object, *offset)),
                _ => {
                    return Err(fail(format!(
                        "line {}: {line:?} is not a size, an object and a first byte",
                        i + 1
                    )));
                }
            }
        }
        if !places.is_empty() && places.len() < mb.len() {
            return Err(fail("some lines name an object, others don't".to_owned()));
        }
        let places = (!places.is_empty()).then_some(places);
        Ok(Self {
            places,
            ..Self::from_mb(mb)?
        })
    }

    fn draw(dataset: &Dataset) -> Self {
        let mut random = Random::new(dataset.seed);
        let minimum = dataset.min_mb.unwrap_or(dataset.mean_mb * 0.01);
        let mut draw = || dataset.mean_mb + dataset.std_mb * random.normal();
        let mut one = || match (dataset.negative, dataset.std_mb > 0.0) {
            (_, false) => dataset.mean_mb,
            (Negative::Redraw, _) => loop {
                let size = draw();
                if size >= minimum {
                    return size;
                }
            },
            _ => draw().max(minimum),
        };
        let drawn: Vec<f64> = (0..dataset.samples).map(|_| one()).collect();
        let sum: f64 = drawn.iter().sum();
        let scale = match dataset.negative {
            Negative::ClipRescale => dataset.samples as f64 * dataset.mean_mb / sum,
            Negative::Clip | Negative::Redraw => 1.0,
        };
        let mb: Vec<f32> = drawn.iter().map(|s| (s * scale) as f32).collect();
        let total_mb = mb.iter().map(|s| f64::from(*s)).sum();
        Self {
            mb,
            total_mb,
            places: None,
        }
    }

    /// F.
    #[must_use]
    pub fn samples(&self) -> u32 {
        self.mb.len() as u32
    }

    /// The mean size, in MB.
    #[must_use]
    pub fn mean_mb(&self) -> f64 {
        self.total_mb / self.mb.len() as f64
    }

    /// Size of one sample, in MB.
    #[inline]
    #[must_use]
    pub fn of(&self, sample: u32) -> f64 {
        f64::from(self.mb[sample as usize])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn imagenet22k(negative: Negative) -> Dataset {
        Dataset {
            samples: 100_000,
            mean_mb: 0.1077,
            std_mb: 0.2,
            min_mb: Some(0.001),
            negative,
            ..Dataset::default()
        }
    }

    #[test]
    fn clipping_and_rescaling_keeps_the_total() {
        let sizes = Sizes::new(&imagenet22k(Negative::ClipRescale)).expect("valid");
        assert!((sizes.total_mb / 10_770.0 - 1.0).abs() < 1e-4, "{}", sizes.total_mb);
        assert!(sizes.mb.iter().all(|s| *s > 0.0));
    }

    #[test]
    fn the_other_rules_make_the_data_set_larger() {
        let clip = Sizes::new(&imagenet22k(Negative::Clip)).expect("valid").total_mb;
        let redraw = Sizes::new(&imagenet22k(Negative::Redraw)).expect("valid").total_mb;
        // 29.5 % of the draws are below zero (paper 001, scenario 4).
        assert!(clip > 1.2 * 10_770.0 && redraw > clip, "{clip} {redraw}");
    }

    #[test]
    fn a_list_with_a_bad_line_says_which() {
        let path = std::env::temp_dir().join(format!("foreload-sizes-{}", std::process::id()));
        std::fs::write(&path, "# MB\n1.5\n2\nx\n").expect("writable");
        let dataset = Dataset {
            sizes_file: Some(path.display().to_string()),
            ..Dataset::default()
        };
        let message = Sizes::new(&dataset).expect_err("bad line").to_string();
        std::fs::write(&path, "1.5\n2\n").expect("writable");
        let good = Sizes::new(&dataset).expect("valid");
        std::fs::write(&path, "1.5 0 512\n2 0 1573376\n").expect("writable");
        let shards = Sizes::new(&dataset).expect("valid");
        std::fs::write(&path, "1.5 0 512\n2\n").expect("writable");
        let mixed = Sizes::new(&dataset).expect_err("no place").to_string();
        std::fs::remove_file(&path).expect("removable");
        assert_eq!(shards.places, Some(vec![(0, 512), (0, 1_573_376)]));
        assert!(mixed.contains("some lines"), "{mixed}");
        assert!(message.contains("line 4"), "{message}");
        assert_eq!((good.total_mb, good.samples()), (3.5, 2));
    }
}
