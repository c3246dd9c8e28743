"""Parquet: our own files, an item a row, and documents of others, a document a row."""
