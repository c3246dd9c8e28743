"""JSON lines: one document a line, images in a tar beside the lines (docs/jsonl.md)."""
