"""The public Runner and Loop: where engine, callbacks and monitors meet."""
