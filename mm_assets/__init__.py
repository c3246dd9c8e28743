"""Curated, filtered, training-ready interleaved image-text datasets, every item accounted for."""

__version__ = "0.1.0"
