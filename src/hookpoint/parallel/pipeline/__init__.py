"""PipelineParallel: layers on different processes."""
