"""The command line: inspect, follow, check and clean run folders. Only the commands that train import torch."""
