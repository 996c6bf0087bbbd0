"""The data shard of each rank."""
