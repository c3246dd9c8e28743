"""Duplicates: which images and documents of a data set are alike, and which one of them stays."""
