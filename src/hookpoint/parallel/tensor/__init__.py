"""TensorParallel: split layers over multiple ranks."""
