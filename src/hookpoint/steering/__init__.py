"""Live control: send commands to a run in progress, as files in its run folder."""
