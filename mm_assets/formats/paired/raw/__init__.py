"""Raw shards whose modalities are separate tars: merged into one tar when they are opened, as the file system
``paired://``.
"""
