//! Python conversions over the engine's client; decides nothing.
//!
//! `foreload._core` is what `python/foreload` is built on: the connection to the agent ([`agent`]), jobs and their deliveries ([`job`]), memory
//! seen from Python ([`buffer`]), the index ([`index`]), pages of mapped files ([`pages`], [`attach`]), orders computed without an agent ([`plan`]) and the simulator ([`tools`]). Each
//! function checks its arguments, releases the GIL for whatever may take time, and turns errors into the classes of
//! `foreload.errors` ([`errors`]). The package's documentation of these classes is `_core.pyi`.

mod agent;
mod attach;
mod buffer;
mod defaults;
mod errors;
mod index;
mod job;
mod pages;
mod plan;
mod tools;

/// The native half of the package `foreload`.
#[pyo3::pymodule(gil_used = false)]
mod _core {
    use pyo3::prelude::*;

    #[pymodule_export]
    use crate::agent::Agent;
    #[pymodule_export]
    use crate::attach::Attached;
    #[pymodule_export]
    use crate::buffer::{Sample, Slot};
    #[pymodule_export]
    use crate::defaults::{batch_bytes, cache_dir, runtime_dir, staging_bytes};
    #[pymodule_export]
    use crate::errors::give_up_after;
    #[pymodule_export]
    use crate::index::Index;
    #[pymodule_export]
    use crate::job::{Delivery, Job};
    #[pymodule_export]
    use crate::pages::ReadAhead;
    #[pymodule_export]
    use crate::plan::Plan;
    #[pymodule_export]
    use crate::tools::{cost, digest_of, scenario, scheme, simulate, split_url, stands_for, storage_options, url_of};

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))?;
        crate::defaults::add(module)
    }
}
