"""Samples whose modalities lie in separate tars: shards that are paired before they are split or shuffled,
joined by key.
"""
