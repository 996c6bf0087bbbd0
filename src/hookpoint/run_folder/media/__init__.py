"""Readers of what a run has drawn or measured besides curves: images, histograms, loss landscapes."""
