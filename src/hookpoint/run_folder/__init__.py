"""Read the folder of a run: what the command line and the plots show."""
