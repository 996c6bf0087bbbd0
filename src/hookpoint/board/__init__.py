"""The board: a local web page that shows run folders. Its server writes nothing to them except commands to runs in progress.

`page/` contains the built page. Its sources are in `web/`.
"""
