"""The progress bar, the time left, the throughput."""
