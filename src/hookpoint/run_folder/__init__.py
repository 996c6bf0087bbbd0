"""Read run folders, for the command line, the plots and the board."""
