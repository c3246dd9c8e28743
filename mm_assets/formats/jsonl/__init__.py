"""JSON lines: one document per line, images in a tar beside the file (docs/jsonl.md)."""
