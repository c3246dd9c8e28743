"""Measures of samples, mostly of their texts: one module and one column of the sample scores for each."""
