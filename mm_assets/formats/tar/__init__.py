"""Tar archives: header scan, recovery behind damage, deterministic writing; knows nothing of samples."""
