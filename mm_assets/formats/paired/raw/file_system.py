"""Paired shards as files: a read-only fsspec file system in which tars of one modality each are one tar."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import IO, Any

from fsspec.spec import AbstractFileSystem

from mm_assets.formats.file_stamps import MISSING, local_stamp, remote_stamps
from mm_assets.formats.paired.raw.address import PROTOCOL, PairedAddress, stem_of
from mm_assets.formats.paired.raw.merge import merge
from mm_assets.formats.paired.raw.parts import ModalityTar
from mm_assets.formats.storage import is_remote, local_path, open_binary, size_of
from mm_assets.formats.tar.scan import scan_tolerant
from mm_assets.formats.tar.spool import local_tar, unpacked_limit

_SUFFIX = ".tar"
_REVISION = "2"  # of what a merged tar says of its parts: what was made of an older one is made anew


class PairedFileSystem(AbstractFileSystem):
    """``paired://ADDRESS`` is a folder with ``NAME.tar`` for each name that a modality has: the merged tar,
    made when it is opened.

    ``paired://ADDRESS/MODALITY/FILE`` is a modality's own tar, which locators name. See `PairedAddress` and
    `merge`.
    """

    protocol = PROTOCOL

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        address, name = self._parsed(path)
        if name:
            info = self.info(path)
            return [info if detail else info["name"]]
        token = self._strip_protocol(path)
        infos = [
            self._merged_info(f"{token}/{stem}{_SUFFIX}", address, parts)
            for stem, parts in address.names().items()
        ]
        return infos if detail else [info["name"] for info in infos]

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        path = self._strip_protocol(path)
        address, name = self._parsed(path)
        if not name:
            return {"name": path, "size": 0, "type": "directory"}
        if (own := self._own_tar(address, name)) is not None:
            return {"name": path, "size": size_of(own), "type": "file"}
        return self._merged_info(path, address, self._tars(address, name))

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
        for own in address.parts(stem_of(file)).get(modality, []):
            if os.path.basename(own) == file:
                return own
        raise FileNotFoundError(f"{name}: no tar of this name")

    def _parts(self, address: PairedAddress, name: str) -> dict[str, str]:
        """The one tar of each modality.

        Raises ``FileNotFoundError`` where there is none, ``ValueError`` where there are several.
        """
        parts = self._tars(address, name)
        for modality, files in parts.items():
            if len(files) > 1:
                names = ", ".join(os.path.basename(file) for file in files)
                stem = name.removesuffix(_SUFFIX)
                raise ValueError(
                    f"several tars of modality {modality!r} are called {stem!r}, rename all but one: {names}"
                )
        return {modality: files[0] for modality, files in parts.items()}

    def _tars(self, address: PairedAddress, name: str) -> dict[str, list[str]]:
        stem = name.removesuffix(_SUFFIX)
        parts = address.parts(stem)
        for modality, location in address.locations.items():
            if modality not in parts:
                raise FileNotFoundError(f"{location}: no tar {stem!r} of modality {modality!r}")
        return parts

    def _merged_info(
        self, path: str, address: PairedAddress, parts: Mapping[str, Sequence[str]]
    ) -> dict[str, Any]:
        files = [file for of_modality in parts.values() for file in of_modality]
        stamps = remote_stamps([file for file in files if is_remote(file)])
        stamps |= {file: local_stamp(local_path(file)) for file in files if not is_remote(file)}
        said = [
            _REVISION,
            address.missing_key_policy,
            *(f"{modality}:{stamps[file]}" for modality, some in parts.items() for file in some),
        ]
        # About: the merged tar has other headers, and json of its own. What is gone is missed when the tar is
        # opened, alone.
        size = sum(size_of(file) for file in files if stamps[file] != MISSING)
        return {
            "name": path,
            "size": size,
            "type": "file",
            "ETag": hashlib.sha256("\n".join(said).encode()).hexdigest()[:32],
        }


def _merged(name: str, address: PairedAddress, files: Mapping[str, str]) -> IO[bytes]:
    """The merged tar as an open temporary file without a name.

    Raises `TarDamage` for a packed tar that is damaged.
    """
    with ExitStack() as stack:
        parts = []
        for modality in address.locations:  # in the order in which they were given
            file = files[modality]
            called = f"{modality}/{os.path.basename(file)}"
            limit = unpacked_limit(size_of(file))
            source = stack.enter_context(open_binary(file)) if is_remote(file) else local_path(file)
            descriptor = stack.enter_context(local_tar(source, called, max_bytes=limit))
            parts.append(ModalityTar(modality, called, descriptor, scan_tolerant(descriptor, called)))
        with tempfile.TemporaryDirectory(prefix="mm-assets-") as folder:
            target = os.path.join(folder, "merged.tar")
            merge(parts, target, address.missing_key_policy)
            return open(target, "rb")
