"""Image scores, and filters that keep or drop images by their scores."""
