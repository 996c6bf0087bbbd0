"""One checkpoint of several processes."""
