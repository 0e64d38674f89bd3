"""Loads shaped like those of MLPerf Storage v3.0's training workloads, on emulated accelerators.

MLPerf is a trademark of MLCommons. What is measured here was not submitted and is unverified: sizes, batch, compute time and the measure of accelerator
utilisation (AU) are those of the benchmark's rules; data, store and number of samples are not.

`loads` says what the workloads are, `accelerator` is one emulated accelerator, and `python -m bench.mlperf` runs as many as a machine feeds.
"""
