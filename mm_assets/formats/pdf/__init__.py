"""PDF files as raw shards: each becomes a sample of its texts and images in reading order (docs/pdf.md).

They are a file system, ``pdf://``.
"""
