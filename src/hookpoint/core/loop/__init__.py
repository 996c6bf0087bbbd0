"""The loop: epochs, passes and iterations, with saving, resuming, signals and agreement as its parts."""
