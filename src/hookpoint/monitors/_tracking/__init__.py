"""What the monitors of tracking servers share."""
