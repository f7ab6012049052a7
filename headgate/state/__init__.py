"""How does keyed state move without stopping a job? Slices, lanes, stores, deltas, checkpoints (ChronoStream, ICDE '15)."""
