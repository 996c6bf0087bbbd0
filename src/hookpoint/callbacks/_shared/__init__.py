"""What several folders of callbacks need."""
