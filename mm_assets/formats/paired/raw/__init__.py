"""Paired raw shards: tars of one modality each, merged into one tar when they are opened.

They are a file system, ``paired://``.
"""
