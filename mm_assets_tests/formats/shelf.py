"""A folder behind URLs of a scheme of its own: it stands for an object store, which outlives the process as
memory does not.
"""

from __future__ import annotations

import fsspec
from fsspec.implementations.local import LocalFileSystem


class ShelfFileSystem(LocalFileSystem):
    """``shelf:///folder/name`` is the local file ``/folder/name``; folders appear with their first file."""

    protocol = "shelf"

    def __init__(self, **options: object) -> None:
        super().__init__(**{**options, "auto_mkdir": True})

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return LocalFileSystem._strip_protocol(path.removeprefix("shelf://"))

    def unstrip_protocol(self, name: str) -> str:
        return f"shelf://{self._strip_protocol(name)}"


fsspec.register_implementation("shelf", ShelfFileSystem)


class TwoSchemesFileSystem(ShelfFileSystem):
    """``gs:///folder/name``, and ``gcs://`` for the same; register it for a test alone."""

    protocol = ("gs", "gcs")

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return LocalFileSystem._strip_protocol(path.removeprefix("gcs://").removeprefix("gs://"))

    def unstrip_protocol(self, name: str) -> str:
        return f"gs://{self._strip_protocol(name)}"
