"""The public Runner and Loop, which combine the engine with the default callbacks and monitors."""
