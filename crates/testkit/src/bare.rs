//! The bare client: the yardstick of all benchmarks.
