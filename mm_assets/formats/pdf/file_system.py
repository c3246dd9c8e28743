"""The read-only fsspec file system ``pdf://``: each folder of PDFs appears as one tar of samples."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Sequence
from typing import IO, Any

from fsspec.spec import AbstractFileSystem

from mm_assets.formats.file_stamps import MISSING, local_stamp, remote_stamps
from mm_assets.formats.pdf.address import PdfAddress
from mm_assets.formats.pdf.shard import write_shard
from mm_assets.formats.pdf.source import PdfSource
from mm_assets.formats.storage import is_remote, local_path, open_binary, size_of
from mm_assets.formats.webdataset.layout import PDF_PROTOCOL

_SUFFIX = ".tar"
_REVISION = "1"  # of the content of these tars: part of their identity, so a new one makes outputs again


class PdfFileSystem(AbstractFileSystem):
    """``pdf://ADDRESS``: a folder with a tar ``NAME.tar`` for each shard.

    A tar is made when it is opened. ``pdf://ADDRESS/NAME/FILE`` is an original file, as named by locators.
    See `PdfAddress` and `write_shard`.
    """

    protocol = PDF_PROTOCOL

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        path = self._strip_protocol(path)
        token, _slash, inner = path.partition("/")
        shards = PdfAddress.parse(token).names()
        if inner.removesuffix(_SUFFIX) in shards and inner.endswith(_SUFFIX):
            infos = [self._shard_info(path, shards[inner.removesuffix(_SUFFIX)])]
        else:
            infos = self._inside(token, f"{inner}/" if inner else "", shards)
        if not infos:
            raise FileNotFoundError(f"{inner}: no folder of PDFs of this name")
        return infos if detail else [info["name"] for info in infos]

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        path = self._strip_protocol(path)
        token, _slash, inner = path.partition("/")
        shards = PdfAddress.parse(token).names()
        if (original := _original(shards, inner)) is not None:
            return {"name": path, "size": size_of(original), "type": "file"}
        if inner.endswith(_SUFFIX) and inner.removesuffix(_SUFFIX) in shards:
            return self._shard_info(path, shards[inner.removesuffix(_SUFFIX)])
        if not inner or any(name.startswith(f"{inner}/") for name in shards):
            return {"name": path, "size": 0, "type": "directory"}
        raise FileNotFoundError(f"{inner}: no folder of PDFs of this name")

    def _open(self, path: str, mode: str = "rb", **_: Any) -> IO[bytes]:
        if mode != "rb":
            raise ValueError(f"PDFs can only be read, not opened in mode {mode!r}")
        token, _slash, inner = self._strip_protocol(path).partition("/")
        shards = PdfAddress.parse(token).names()
        if (original := _original(shards, inner)) is not None:
            return open_binary(original)
        if inner.removesuffix(_SUFFIX) not in shards:
            raise FileNotFoundError(f"{inner}: no folder of PDFs of this name")
        with tempfile.TemporaryDirectory(prefix="mm-assets-") as folder:
            target = os.path.join(folder, "shard.tar")
            write_shard(shards[inner.removesuffix(_SUFFIX)], target)
            return open(target, "rb")

    def _inside(self, token: str, prefix: str, shards: dict[str, list[PdfSource]]) -> list[dict[str, Any]]:
        """Return what is right below a folder: shards, and folders with shards below them."""
        infos: dict[str, dict[str, Any]] = {}
        for name, sources in shards.items():
            if not name.startswith(prefix):
                continue
            head, slash, _ = name[len(prefix) :].partition("/")
            path = f"{token}/{prefix}{head}"
            if slash:
                infos.setdefault(path, {"name": path, "size": 0, "type": "directory"})
            else:
                infos[f"{path}{_SUFFIX}"] = self._shard_info(f"{path}{_SUFFIX}", sources)
        return list(infos.values())

    def _shard_info(self, path: str, sources: Sequence[PdfSource]) -> dict[str, Any]:
        files = {name: uri for source in sources for name, uri in source.files.items()}
        stamps = remote_stamps([uri for uri in files.values() if is_remote(uri)])
        stamps |= {uri: local_stamp(local_path(uri)) for uri in files.values() if not is_remote(uri)}
        identity = [_REVISION, *(f"{os.path.basename(name)}:{stamps[uri]}" for name, uri in files.items())]
        return {
            "name": path,
            # Approximate: the tar has the images and texts, not the PDFs.
            "size": sum(size_of(uri) for uri in files.values() if stamps[uri] != MISSING),
            "type": "file",
            "ETag": hashlib.sha256("\n".join(identity).encode()).hexdigest()[:32],
        }


def _original(shards: dict[str, list[PdfSource]], name: str) -> str | None:
    """Return the original file that a locator's name stands for."""
    sources = shards.get(name.rpartition("/")[0], [])
    return next((source.files[name] for source in sources if name in source.files), None)
