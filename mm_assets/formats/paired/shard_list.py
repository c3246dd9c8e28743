"""Pairing of shards: groups of one tar per modality."""

from __future__ import annotations

import os
import random
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping

from webdataset.pytorch import IterableDataset
from webdataset.shardlists import envsubst

from mm_assets.formats.brace_lists import expand_braces
from mm_assets.interleaved.counted import counted

__all__ = ["PairedShardList"]

ShardUrls = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]
ShardGroup = dict[str, dict[str, str]]  # {"urls": {modality: url}}

_MAX_SUBSTITUTIONS = 10
_TAR_NAME = re.compile(r"""([^\s/"'=?&]+)\.(?:tar(?:\.\w+)?|tgz)\b""")


class PairedShardList(IterableDataset):
    """An iterable of one ``{"urls": {modality: url}}`` per shard: the n-th URL of every modality.

    Args:
        modalities: URLs by modality. A string is expanded as webdataset does (braces, ``::`` between several,
            ``${X}`` for the environment's ``WDS_X``); a list of URLs is taken as it is.
        seed: Gives every pass the same shuffled order. None keeps the order.

    Raises:
        ValueError: There are no modalities or no shards, or the modalities differ in the number of shards.

    Warns once, here, if paired shards have different file names.
    """

    def __init__(self, modalities: Mapping[str, ShardUrls], seed: int | None = None) -> None:
        super().__init__()
        if not isinstance(modalities, Mapping):
            raise TypeError(
                "modalities must be a mapping from each one's name to its shards, "
                f"not {type(modalities).__name__}"
            )
        urls = {name: _expand(given) for name, given in modalities.items()}
        counts = {name: len(expanded) for name, expanded in urls.items()}
        if not counts:
            raise ValueError("no modalities")
        if len(set(counts.values())) > 1:
            listed_counts = ", ".join(f"{name}={count}" for name, count in counts.items())
            raise ValueError(f"all modalities must have the same number of shards: {listed_counts}")
        if not all(counts.values()):
            raise ValueError("no shards")
        self.seed = seed
        self.groups = [dict(zip(urls, group, strict=True)) for group in zip(*urls.values(), strict=True)]
        _warn_of_names(self.groups)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {counted(len(self.groups), 'shard')}: {', '.join(self.groups[0])}>"

    def __len__(self) -> int:
        """Number of shard groups."""
        return len(self.groups)

    def __iter__(self) -> Iterator[ShardGroup]:
        groups = self.groups.copy()
        if self.seed is not None:
            random.Random(self.seed).shuffle(groups)
        for urls in groups:
            yield {"urls": dict(urls)}


def shard_name(url: str) -> str:
    """Return a shard's file name without ``.tar`` and what follows; it may be within a ``pipe:`` command."""
    names = _TAR_NAME.findall(url)
    return names[-1] if names else url.rstrip("/").rpartition("/")[2]


def _expand(given: ShardUrls) -> list[str]:
    if isinstance(given, str):
        return [name for url in given.split("::") for name in expand_braces(_substituted(url))]
    if isinstance(given, os.PathLike):
        return [os.fspath(given)]
    return [os.fspath(url) for url in given]


def _substituted(url: str) -> str:
    """Substitute variables as webdataset does: values may name further variables."""
    for _ in range(_MAX_SUBSTITUTIONS):
        url = envsubst(url)
    return url


def _warn_of_names(groups: list[dict[str, str]]) -> None:
    differing = [group for group in groups if len({shard_name(url) for url in group.values()}) > 1]
    if differing:
        example = ", ".join(f"{name}={url!r}" for name, url in differing[0].items())
        warnings.warn(
            f"shards are paired by index, and the names differ in {len(differing)} of {len(groups)} pairs; "
            f"the first is {example}",
            stacklevel=3,
        )
