//! The index of a data set, from Python.

use crate::errors::invalid;
use foreload_store as store;
use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;
use pyo3::pybacked::{PyBackedBytes, PyBackedStr};
use pyo3::types::PyBytes;

/// What a data set consists of. Shared memory: copies of it cost nothing.
#[pyclass(frozen, module = "foreload._core")]
pub struct Index(store::Index);

/// What a sample is asked for by.
#[derive(FromPyObject)]
pub enum Named {
    /// Its number; of those below 0 counted from the end.
    Number(i64),
    /// The key of a value.
    Key(PyBackedBytes),
    /// The same as text.
    Text(PyBackedStr),
}

/// Key, first byte, bytes, the object's size, ETag.
type Place = (String, u64, u64, u64, Option<String>);

impl Index {
    /// The index that the agent shares.
    pub fn new(index: store::Index) -> Self {
        Index(index)
    }

    fn check(&self, sample: u64) -> PyResult<u64> {
        if sample < self.0.len() {
            Ok(sample)
        } else {
            Err(PyIndexError::new_err(format!("sample {sample} of {}", self.0.len())))
        }
    }

    fn place_of(&self, range: &store::ObjectRange) -> PyResult<Place> {
        let object = self.0.object(range.object).map_err(invalid)?;
        Ok((object.key, range.offset, range.length, object.size, object.etag))
    }
}

#[pymethods]
impl Index {
    fn __len__(&self) -> usize {
        self.0.len() as usize
    }

    /// 32 hexadecimal digits that name keys, sizes, ETags, ranges and labels.
    #[getter]
    fn digest(&self) -> String {
        foreload_plan::Digest::from_bytes(self.0.digest()).to_string()
    }

    #[getter]
    fn root(&self) -> &str {
        self.0.root()
    }

    /// URL of the manifest that listed its samples, if one did.
    #[getter]
    fn manifest(&self) -> Option<String> {
        self.0.manifest()
    }

    /// What building it found: (sentence, whether it probably isn't what is wanted).
    fn notes(&self) -> Vec<(String, bool)> {
        self.0.notes().into_iter().map(|note| (note.text, note.warns)).collect()
    }

    #[getter]
    fn format(&self) -> String {
        format!("{:?}", self.0.format()).to_lowercase()
    }

    #[getter]
    fn objects(&self) -> u64 {
        self.0.objects()
    }

    #[getter]
    fn classes(&self) -> Vec<String> {
        self.0.classes().into_iter().map(str::to_owned).collect()
    }

    /// Bytes of the index, and of the list of a choice.
    #[getter]
    fn nbytes(&self) -> usize {
        let list = self.0.numbers().map_or(0, |numbers| numbers.as_bytes().len());
        self.0.as_bytes().len() + list
    }

    /// Bytes of all samples.
    fn total_bytes(&self, py: Python<'_>) -> u64 {
        py.detach(|| (0..self.0.len()).map(|i| self.0.length(i)).sum())
    }

    fn length(&self, sample: u64) -> PyResult<u64> {
        Ok(self.0.length(self.check(sample)?))
    }

    fn label(&self, sample: u64) -> PyResult<Option<i64>> {
        Ok(self.0.label(self.check(sample)?))
    }

    /// What it is called: WebDataset's key in a shard, otherwise the object's key.
    fn key(&self, sample: u64) -> PyResult<String> {
        if let Some(name) = self.0.name(self.check(sample)?) {
            return Ok(name);
        }
        let found = self.0.sample(self.check(sample)?).map_err(invalid)?;
        Ok(self.0.object(found.object).map_err(invalid)?.key)
    }

    /// The number of the first value with a key, of an LMDB file with the order that LMDB has.
    fn find(&self, key: &[u8]) -> Option<u64> {
        store::format::find_key(&self.0, key)
    }

    /// First byte and bytes in the object of each of these, of an LMDB file; None: there is no such sample. Of several ranges the first.
    fn spans(&self, py: Python<'_>, what: Vec<Named>) -> Vec<Option<(u64, u64)>> {
        let count = self.0.len();
        let number = |named: &Named| match named {
            Named::Number(number) if *number < 0 => count.checked_sub(number.unsigned_abs()),
            Named::Number(number) => Some(number.unsigned_abs()),
            Named::Key(key) => store::format::find_key(&self.0, key),
            Named::Text(key) => store::format::find_key(&self.0, key.as_bytes()),
        };
        let span = |named: &Named| {
            let found = self.0.sample(number(named).filter(|&number| number < count)?).ok()?;
            let first = found.ranges().next().unwrap_or_default();
            Some((first.offset, first.length))
        };
        py.detach(|| what.iter().map(span).collect())
    }

    /// (key, first byte, bytes, object's size, etag); of several ranges the first
    fn place(&self, sample: u64) -> PyResult<Place> {
        let found = self.0.sample(self.check(sample)?).map_err(invalid)?;
        self.place_of(&found.ranges().next().unwrap_or_default())
    }

    /// The ranges of a sample, each as (key, first byte, bytes, object's size, etag): nearly always one
    fn ranges(&self, sample: u64) -> PyResult<Vec<Place>> {
        let found = self.0.sample(self.check(sample)?).map_err(invalid)?;
        found.ranges().map(|range| self.place_of(&range)).collect()
    }

    /// A sample's CRC-32C, where the index has checksums.
    fn crc32c(&self, sample: u64) -> PyResult<Option<u32>> {
        Ok(self.0.crc32c(self.check(sample)?))
    }

    /// Parts of a sample: (name, first byte in the sample, bytes).
    fn fields(&self, sample: u64) -> PyResult<Vec<(String, u64, u64)>> {
        let found = self.0.sample(self.check(sample)?).map_err(invalid)?;
        Ok(found
            .fields()
            .map(|(name, at, len)| (name.to_owned(), at, len))
            .collect())
    }

    /// All labels as little-endian int64; samples without one have -2^63.
    fn labels<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        let bytes: Vec<u8> = py.detach(|| {
            (0..self.0.len())
                .flat_map(|i| self.0.label(i).unwrap_or(i64::MIN).to_le_bytes())
                .collect()
        });
        PyBytes::new(py, &bytes)
    }

    /// All lengths as little-endian uint64.
    fn lengths<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        let bytes: Vec<u8> = py.detach(|| (0..self.0.len()).flat_map(|i| self.0.length(i).to_le_bytes()).collect());
        PyBytes::new(py, &bytes)
    }

    /// The first byte of each sample in its object, as little-endian uint64; of several ranges that of the first.
    fn offsets<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let first = |i| Ok(self.0.sample(i)?.ranges().next().unwrap_or_default().offset);
        let offsets = py.detach(|| {
            (0..self.0.len())
                .map(first)
                .collect::<foreload_store::Result<Vec<u64>>>()
        });
        let bytes: Vec<u8> = offsets
            .map_err(invalid)?
            .into_iter()
            .flat_map(u64::to_le_bytes)
            .collect();
        Ok(PyBytes::new(py, &bytes))
    }

    /// The index file; of a choice, that of an index of its own.
    fn to_bytes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let alone = py.detach(|| self.0.alone()).map_err(invalid)?;
        Ok(PyBytes::new(py, alone.as_bytes()))
    }
}
