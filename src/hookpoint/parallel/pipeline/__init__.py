"""PipelineParallel: layers on different ranks."""
