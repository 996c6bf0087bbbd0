"""Averaged weights: EMA and SWA."""
