"""The fused step: torch.compile and whole-step CUDA graphs under the Runner."""
