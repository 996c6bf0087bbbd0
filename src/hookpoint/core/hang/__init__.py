"""Report runs that wait too long for data or for other ranks."""
