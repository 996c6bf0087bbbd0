"""Join a process group, and talk to the other processes."""
