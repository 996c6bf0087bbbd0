"""The shard of the data of each rank."""
