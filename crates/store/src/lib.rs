//! Bytes at rest: sources (object stores, files) and formats, brought to one index.
