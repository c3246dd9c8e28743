"""The read-only fsspec file system ``paired://``: tars of one modality each appear as one merged tar."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import IO, Any

from fsspec.spec import AbstractFileSystem

from mm_assets.formats.file_stamps import MISSING, local_stamp, remote_stamps
from mm_assets.formats.paired.raw.address import PairedAddress, stem_of
from mm_assets.formats.paired.raw.merge import merge
from mm_assets.formats.paired.raw.parts import ModalityTar
from mm_assets.formats.storage import is_remote, local_path, open_binary, size_of
from mm_assets.formats.tar.scan import scan_tolerant
from mm_assets.formats.tar.spool import local_tar, unpacked_limit
from mm_assets.formats.webdataset.layout import MERGED_PROTOCOL

_SUFFIX = ".tar"
_REVISION = "2"  # of the content of merged tars: part of their identity, so a new one makes outputs again


class PairedFileSystem(AbstractFileSystem):
    """``paired://ADDRESS``: a folder with a merged tar ``NAME.tar`` for each name that a modality has.

    A merged tar is made when it is opened. ``paired://ADDRESS/MODALITY/FILE`` is a modality's original tar,
    as named by locators. See `PairedAddress` and `merge`.
    """

    protocol = MERGED_PROTOCOL

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
        if (tar := self._member_tar(address, name)) is not None:
            return {"name": path, "size": size_of(tar), "type": "file"}
        return self._merged_info(path, address, self._tars(address, name))

    def _open(self, path: str, mode: str = "rb", **_: Any) -> IO[bytes]:
        if mode != "rb":
            raise ValueError(f"paired shards can only be read, not opened in mode {mode!r}")
        address, name = self._parsed(path)
        if (tar := self._member_tar(address, name)) is not None:
            return open_binary(tar)
        return _merged(name, address, self._parts(address, name))

    def _parsed(self, path: str) -> tuple[PairedAddress, str]:
        token, _, name = self._strip_protocol(path).partition("/")
        return PairedAddress.parse(token), name

    def _member_tar(self, address: PairedAddress, name: str) -> str | None:
        modality, slash, file = name.partition("/")
        if not slash:
            return None
        for tar in address.parts(stem_of(file)).get(modality, []):
            if os.path.basename(tar) == file:
                return tar
        raise FileNotFoundError(f"{name}: no tar of this name")

    def _parts(self, address: PairedAddress, name: str) -> dict[str, str]:
        """Return the one tar of each modality.

        Raises:
            FileNotFoundError: A modality has none.
            ValueError: A modality has several.
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
        identity = [
            _REVISION,
            address.missing_key_policy,
            *(f"{modality}:{stamps[file]}" for modality, tars in parts.items() for file in tars),
        ]
        # Approximate: the merged tar has other headers, and json of its own. A missing tar only fails
        # when it is opened.
        size = sum(size_of(file) for file in files if stamps[file] != MISSING)
        return {
            "name": path,
            "size": size,
            "type": "file",
            "ETag": hashlib.sha256("\n".join(identity).encode()).hexdigest()[:32],
        }


def _merged(name: str, address: PairedAddress, files: Mapping[str, str]) -> IO[bytes]:
    """Return the merged tar as an open, unlinked temporary file.

    Raises:
        TarDamage: A compressed tar is damaged.
    """
    with ExitStack() as stack:
        parts = []
        for modality in address.locations:  # in the order given
            file = files[modality]
            part_name = f"{modality}/{os.path.basename(file)}"
            limit = unpacked_limit(size_of(file))
            source = stack.enter_context(open_binary(file)) if is_remote(file) else local_path(file)
            descriptor = stack.enter_context(local_tar(source, part_name, max_bytes=limit))
            parts.append(ModalityTar(modality, part_name, descriptor, scan_tolerant(descriptor, part_name)))
        with tempfile.TemporaryDirectory(prefix="mm-assets-") as folder:
            target = os.path.join(folder, "merged.tar")
            merge(parts, target, address.missing_key_policy)
            return open(target, "rb")
