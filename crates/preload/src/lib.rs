//! LD_PRELOAD library for readers of memory-mapped files.
