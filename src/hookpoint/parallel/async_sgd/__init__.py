"""AsyncSGD: train with a parameter server and workers that do not wait for each other."""
