"""Text: find typos, mask secrets, and print to the terminal."""
