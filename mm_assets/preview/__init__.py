"""What filters would drop, from stored scores alone, before they are applied."""
