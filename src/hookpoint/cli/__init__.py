"""The command line: inspect, follow, check and clean run folders. Only commands that train import torch."""
