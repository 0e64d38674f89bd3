//! The agent's executable: one process per user and cache directory, started by the first client.

fn main() {}
