"""WebDataset tars: readers of raw samples and of our native layout, and the writer of the latter."""
