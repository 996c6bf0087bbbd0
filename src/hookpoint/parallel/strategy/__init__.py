"""The Strategy protocol, and the strategies DataParallel and Sharded."""
