"""Tar archives: header scan, recovery after damage, deterministic writing. Knows nothing of samples."""
