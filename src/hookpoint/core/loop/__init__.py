"""The loop: epochs, passes and iterations. Saving, resuming, signals and agreement are its components."""
