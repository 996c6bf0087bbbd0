"""Memory, GPU utilization, garbage collection."""
