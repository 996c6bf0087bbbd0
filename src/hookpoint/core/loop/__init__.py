"""The loop: epochs, passes and iterations. Its components handle saving, resuming, signals and agreement between ranks."""
