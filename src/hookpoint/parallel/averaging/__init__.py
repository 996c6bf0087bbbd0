"""ParameterAveraging: a model on each process, averaged now and then."""
