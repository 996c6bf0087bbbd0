"""The fused step: a Runner's training step with torch.compile, as a CUDA graph, or both."""
