"""The progress bar, the remaining time and the throughput."""
