"""TensorParallel: each layer split over multiple ranks."""
