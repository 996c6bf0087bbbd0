"""Read the folder of a run, for the command line, the plots and the board."""
