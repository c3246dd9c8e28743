"""Files of any file system: they appear as a whole, errors are lines; listings, stamps, small files."""
