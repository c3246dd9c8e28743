"""Paired tars: samples whose modalities are in separate tars, joined by key.

There are two ways from such tars to samples. They only share the scan of a tar (`mm_assets.formats.tar`).

* `join` is for training. It follows webdataset exactly: its rule for keys, its renaming and selection of
  members, its samples of bytes. Anything that does not fit raises, or is left out and reported.
* `merge` is for curation. It makes one tar in the native layout that accounts for every member: hidden
  files, members without a key, damaged ranges and keys that a tar lacks become records in it.

For training, the shards are paired before they are split between workers or shuffled.
"""
