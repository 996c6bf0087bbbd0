"""Several processes that act as one."""
