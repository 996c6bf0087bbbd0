"""Callbacks that send messages to people or to other programs."""
