"""Samples whose modalities lie in separate tars: shards that are paired before they are split or shuffled,
joined by key.

Two ways lead from such tars to samples, and they share the scan of a tar (`mm_assets.formats.tar`) alone:

- `join` is for training. It follows webdataset to the letter: its rule for keys, its renaming and selection
  of members, its samples of bytes. What does not fit raises, and is left out with a report.
- `raw.merge` is for curation. It makes one tar of our own layout, in which every member is accounted for:
  hidden files, members without a key, damaged ranges and keys that a tar lacks become records in it.
"""
