"""Read the folder of a run, for the command line and the plots."""
