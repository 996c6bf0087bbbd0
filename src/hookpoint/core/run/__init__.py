"""The run object: callbacks read its state and call its methods to make requests."""
