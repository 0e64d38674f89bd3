//! S3-compatible test bucket with cloud timing and faults, the bare client, conformance suites; never shipped.
