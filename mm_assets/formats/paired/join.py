"""Join of the tars of one shard group by key, whatever the order of their members."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

from mm_assets.formats.paired.tar_index import ModalityTarIndex, Payload
from mm_assets.formats.tar.header import damage
from mm_assets.interleaved.errors import DataError

Sample = dict[str, Any]


class JoinedTars:
    """The keys of a shard group, known before any payload is read.

    ``keys`` has the keys of the first modality in its order, then those that only later modalities have, in
    their order. ``common_keys`` has those that all modalities have. ``missing`` has for each modality the
    keys that it lacks and another modality has.
    """

    def __init__(self, tars: dict[str, ModalityTarIndex]) -> None:
        self._tars = tars
        self.keys = list(dict.fromkeys(chain.from_iterable(tar.payloads for tar in tars.values())))
        self.missing = {
            name: [key for key in self.keys if key not in tar.payloads]
            if len(tar.payloads) < len(self.keys)
            else []
            for name, tar in tars.items()
        }
        self._incomplete = set(chain.from_iterable(self.missing.values()))
        self.common_keys = (
            [key for key in self.keys if key not in self._incomplete] if self._incomplete else self.keys
        )

    def check_alignment(self) -> None:
        """Check that all modalities have the same keys.

        Raises:
            DataError: They differ. The message has the first key that a modality lacks, and the key at which
                each modality is there.
        """
        first = next((key for key in self.keys if key in self._incomplete), None)
        if first is None:
            return
        earlier_keys = set(self.keys[: self.keys.index(first)])
        next_keys = []
        for name, tar in self._tars.items():
            key = (
                first
                if first in tar.payloads
                else next((key for key in tar.payloads if key not in earlier_keys), None)
            )
            next_keys.append(f"{name}={key!r}")
        counts = ", ".join(
            f"{len(keys)} in {name} ({self._tars[name].url})" for name, keys in self.missing.items() if keys
        )
        raise DataError(
            f"key mismatch across modalities: {', '.join(next_keys)}; "
            f"of {len(self.keys)} keys are missing: {counts}"
        )

    def check_extensions(self, keys: Iterable[str]) -> None:
        """Check that no two modalities have the same extension for one of these keys.

        Raises:
            DataError: Two of them do.
        """
        extensions = [tar.extensions for tar in self._tars.values()]
        if len(frozenset().union(*extensions)) == sum(map(len, extensions)):
            return
        for key in keys:
            owners: dict[str, str] = {}
            for name, tar in self._tars.items():
                for extension in tar.payloads.get(key, ()):
                    owner = owners.setdefault(extension, name)
                    if owner != name:
                        raise DataError(
                            f"extension key {extension!r} from modality {name!r} collides with "
                            f"that of modality {owner!r} (key {key!r}): give the files other "
                            "extensions, or rename_files for one of the modalities"
                        )

    def read(self, keys: Iterable[str]) -> Iterator[Sample]:
        """Yield the samples of these keys.

        A sample has ``__key__``, the URLs of the tars that have the key, then the bytes by extension.
        """
        tars = [(f"__url_{name}__", tar) for name, tar in self._tars.items()]
        for key in keys:
            sources = [(field, tar) for field, tar in tars if key in tar.payloads]
            sample: Sample = {"__key__": key, "__url__": " ".join([tar.url for _, tar in sources])}
            for field, tar in sources:
                sample[field] = tar.url
            for _, tar in sources:
                for extension, payload in tar.payloads[key].items():
                    data = os.pread(tar.fd, payload.size, payload.offset)
                    sample[extension] = (
                        data if len(data) == payload.size else _read_on(tar, key, payload, data)
                    )
            yield sample


def _read_on(tar: ModalityTarIndex, key: str, payload: Payload, data: bytes) -> bytes:
    """Return a whole payload of which one ``pread`` gave only the start (the kernel stops short of 2 GiB)."""
    chunks = [data]
    at, end = payload.offset + len(data), payload.offset + payload.size
    while at < end:
        chunk = os.pread(tar.fd, end - at, at)
        if not chunk:
            raise damage(tar.url, at, f"the file ends within a member of {key!r}", is_cut=True)
        chunks.append(chunk)
        at += len(chunk)
    return b"".join(chunks)
