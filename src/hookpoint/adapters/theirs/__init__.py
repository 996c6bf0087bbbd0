"""Other libraries' callbacks in a hookpoint run."""
