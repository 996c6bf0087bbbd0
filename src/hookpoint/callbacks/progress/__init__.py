"""Progress bar, remaining time and throughput."""
