"""More than one process: who is who, how they agree, and how torch's engines share the work."""
