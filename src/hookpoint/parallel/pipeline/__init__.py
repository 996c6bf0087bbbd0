"""PipelineParallel: place the layers of a model on different ranks."""
