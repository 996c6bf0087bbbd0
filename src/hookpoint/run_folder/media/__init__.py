"""Read a run's images, histograms and loss landscape."""
