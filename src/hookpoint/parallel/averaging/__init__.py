"""ParameterAveraging: a replica on each rank, averaged periodically."""
