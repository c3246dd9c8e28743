"""Measures of samples, mostly of their texts: one module for each, one column of the sample scores for each."""
