"""Image files: headers, checks, bounded decoding, and lossless split of TIFFs."""
