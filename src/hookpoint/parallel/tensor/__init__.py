"""TensorParallel: each layer over several processes."""
