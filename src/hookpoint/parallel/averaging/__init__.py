"""ParameterAveraging: train a replica on each rank, and average the replicas periodically."""
