"""Run folders in remote storage: a copy of the local folder, with the same layout."""
