"""The sharded Arrow cache: examples from a generator in memory-mapped Arrow IPC files, for training.

See docs/arrow_cache.md.
"""
