"""Paired shards as files: a read-only fsspec file system in which tars of one modality each are one tar."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from typing import IO, Any

from fsspec.spec import AbstractFileSystem

from mm_assets.formats.file_stamps import local_stamp, remote_stamps
from mm_assets.formats.paired.address import PROTOCOL, PairedAddress
from mm_assets.formats.paired.merge import merge
from mm_assets.formats.paired.parts import Part
from mm_assets.formats.storage import filesystem, is_remote, local_path, open_binary, size_of
from mm_assets.formats.webdataset.spool import local_tar, unpacked_limit
from mm_assets.formats.webdataset.tar_scan import scan

_SUFFIX = ".tar"


class PairedFileSystem(AbstractFileSystem):
    """``paired://ADDRESS`` is a folder with ``NAME.tar`` for each name that a modality has: the merged tar, made when it is opened.

    ``paired://ADDRESS/MODALITY/FILE`` is a modality's own tar, which locators name. See `PairedAddress` and `merge`.
    """

    protocol = PROTOCOL

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        address, name = self._parsed(path)
        if name:
            info = self.info(path)
            return [info if detail else info["name"]]
        token = self._strip_protocol(path)
        infos = [self._merged_info(f"{token}/{stem}{_SUFFIX}", address, parts) for stem, parts in address.names().items()]
        return infos if detail else [info["name"] for info in infos]

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        path = self._strip_protocol(path)
        address, name = self._parsed(path)
        if not name:
            return {"name": path, "size": 0, "type": "directory"}
        if (own := self._own_tar(address, name)) is not None:
            return {"name": path, "size": size_of(own), "type": "file"}
        return self._merged_info(path, address, self._parts(address, name))

    def invalidate_cache(self, path: str | None = None) -> None:
        """What object stores remember of the folders; nothing is remembered here."""
        for address in [self._parsed(path)[0]] if path else []:
            for location in address.locations.values():
                filesystem(location)[0].invalidate_cache()

    def _open(self, path: str, mode: str = "rb", **_: Any) -> IO[bytes]:
        if mode != "rb":
            raise ValueError(f"paired shards can only be read, not opened in mode {mode!r}")
        address, name = self._parsed(path)
        if (own := self._own_tar(address, name)) is not None:
            return open_binary(own)
        return _merged(name, address, self._parts(address, name))

    def _parsed(self, path: str) -> tuple[PairedAddress, str]:
        token, _, name = self._strip_protocol(path).partition("/")
        return PairedAddress.parse(token), name

    def _own_tar(self, address: PairedAddress, name: str) -> str | None:
        modality, slash, file = name.partition("/")
        if not slash:
            return None
        for parts in address.names().values():
            if modality in parts and os.path.basename(parts[modality]) == file:
                return parts[modality]
        raise FileNotFoundError(f"{name}: no tar of this name")

    def _parts(self, address: PairedAddress, name: str) -> Mapping[str, str]:
        parts = address.names().get(name.removesuffix(_SUFFIX), {})
        for modality, location in address.locations.items():
            if modality not in parts:
                raise FileNotFoundError(f"{location}: no tar {name.removesuffix(_SUFFIX)!r} of modality {modality!r}")
        return parts

    def _merged_info(self, path: str, address: PairedAddress, parts: Mapping[str, str]) -> dict[str, Any]:
        stamps = {**remote_stamps([file for file in parts.values() if is_remote(file)])}
        stamps |= {file: local_stamp(local_path(file)) for file in parts.values() if not is_remote(file)}
        said = [address.missing_key_policy, *(f"{modality}:{stamps[file]}" for modality, file in parts.items())]
        size = sum(size_of(file) for file in parts.values())  # about: the merged tar has other headers, and json of its own
        return {"name": path, "size": size, "type": "file", "ETag": hashlib.sha256("\n".join(said).encode()).hexdigest()[:32]}


def _merged(name: str, address: PairedAddress, files: Mapping[str, str]) -> IO[bytes]:
    """The merged tar as an open temporary file without a name. Raises `TarDamage` for a tar that is damaged."""
    with ExitStack() as stack:
        parts = []
        for modality in address.locations:  # in the order in which they were given
            file = files[modality]
            called = f"{modality}/{os.path.basename(file)}"
            limit = unpacked_limit(size_of(file))
            source = stack.enter_context(open_binary(file)) if is_remote(file) else local_path(file)
            descriptor = stack.enter_context(local_tar(source, called, max_bytes=limit))
            parts.append(Part(modality, called, descriptor, scan(descriptor, called)))
        with tempfile.TemporaryDirectory(prefix="mm-assets-") as folder:
            target = os.path.join(folder, "merged.tar")
            merge(parts, target, address.missing_key_policy)
            return open(target, "rb")
