"""pytest collects nothing here: `make test-gpu` runs these checks on a GPU, where pytest may be missing."""

collect_ignore_glob = ["*.py"]
