"""Strategy, DataParallel and Sharded."""
