"""The board: a local web page that shows run folders. Its server writes nothing except commands to runs in progress."""
