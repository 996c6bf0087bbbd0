"""Run other libraries' callbacks in a hookpoint run."""
