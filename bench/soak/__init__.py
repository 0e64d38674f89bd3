"""Minutes of random faults and kills: every epoch exact, nothing grows. `make chaos` runs it."""
