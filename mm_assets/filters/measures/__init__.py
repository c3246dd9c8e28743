"""Measures of images: one module for each, one column of the image scores for each."""
