"""The command `hookpoint`: what run folders say, and what is done with them, without importing torch."""
