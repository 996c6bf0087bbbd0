"""Live control: commands to a running training, as files in its run folder."""
