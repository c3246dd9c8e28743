"""`MultiModalWebDataset`: a webdataset for training whose modalities are in separate tars.

`PairedTarExpander` expands shard groups into samples. A `GroupReport` has the samples yielded from a group,
and the content left out.
"""

from __future__ import annotations

import logging
import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, Self, TypeVar, get_args

from webdataset.compat import FluidInterface
from webdataset.filters import default_collation_fn, dict2tuple, tuple2dict
from webdataset.filters import detshuffle as detshuffled
from webdataset.filters import shuffle as shuffled
from webdataset.handlers import reraise_exception
from webdataset.pipeline import DataPipeline
from webdataset.shardlists import single_node_only, split_by_worker
from webdataset.utils import pytorch_worker_info

from mm_assets.formats.paired.joined_tars import (
    JoinedTars,
    PairedShardList,
    RenameFiles,
    Sample,
    SelectFiles,
    ShardGroup,
    ShardUrls,
    index_samples,
    open_shards,
)
from mm_assets.model.errors import DataError, counted

__all__ = ["MultiModalWebDataset", "PairedTarExpander"]


@dataclass(slots=True, repr=False)
class Names:
    """Names of keys or files: ``count`` in all; ``first`` has all of them, or as many as can be kept."""

    count: int
    first: list[str]

    def __repr__(self) -> str:
        return f"<{self.count} names: {self}>"

    def __str__(self) -> str:
        shown = self.first[:5]
        return f"{', '.join(map(repr, shown))}{', …' if len(shown) < self.count else ''}"


@dataclass(slots=True, repr=False)
class GroupReport:
    """Report on one shard group.

    ``keys`` counts the distinct keys of all modalities, ``incomplete`` those that at least one modality lacks
    (the policy ``skip`` drops them), ``samples`` those yielded. ``missing`` has the keys that a modality
    lacks and another has. ``unkeyed`` has the files of a modality whose names have no key and extension;
    webdataset does not read these either. ``left_out`` has those that macOS or tar had added. Modalities
    without any are left out of all three. ``error`` is the error that ended the group, else None.
    """

    urls: dict[str, str]
    keys: int = 0
    incomplete: int = 0
    samples: int = 0
    missing: dict[str, Names] = field(default_factory=dict)
    unkeyed: dict[str, Names] = field(default_factory=dict)
    left_out: dict[str, Names] = field(default_factory=dict)
    error: str | None = None

    def keep(self, room: int) -> int:
        """Keep at most ``room`` names and return the number kept."""
        kept = 0
        for names in (*self.missing.values(), *self.unkeyed.values(), *self.left_out.values()):
            del names.first[room - kept :]
            kept += len(names.first)
        return kept

    def __repr__(self) -> str:
        return f"<GroupReport {self}>"

    def __str__(self) -> str:
        parts = (
            [f"{self.keys} keys, of which {self.incomplete} are not in all modalities"]
            if self.keys or self.error is None
            else []
        )
        parts += [f"not in {name}: {keys.count} ({keys})" for name, keys in self.missing.items()]
        if 0 < self.keys == self.incomplete:
            parts.append("they have no key in common (rename_files can make names equal)")
        parts += [
            f"files without key and extension in {name}: {files.count} ({files})"
            for name, files in self.unkeyed.items()
        ]
        parts += [
            f"added by macOS or tar to {name}, and left out: {files.count} ({files})"
            for name, files in self.left_out.items()
        ]
        if self.error is not None:
            parts.append(f"ended after {self.samples} samples by {self.error}")
        return f"{' '.join(f'{name}={url}' for name, url in self.urls.items())}: {'; '.join(parts)}"


log = logging.getLogger(__name__)

MissingKeyPolicy = Literal["skip", "partial", "error"]
Handler = Callable[[Exception], bool]
F = TypeVar("F", bound=Callable[[str], object])
# One function for all modalities, or one per named modality.
Select = SelectFiles | Mapping[str, SelectFiles]
Rename = RenameFiles | Mapping[str, RenameFiles]

_MAX_KEPT = 100_000  # names in the reports of a pass


class PairedTarExpander:
    """A pipeline stage that opens the tars of each shard group and yields samples joined by key.

    An error ends its shard group; so does a tar that is cut or corrupt, before anything of it is yielded.
    Everything left out is in ``reports`` and in the log.

    Args:
        handler: Called with the error of a shard group; decides whether the next group is read, as in
            webdataset.
        select_files: Predicate on names of members, after renaming. A mapping from modality to function gives
            each modality its own.
        rename_files: Function from names of members to new names, or such a mapping.
        missing_key_policy: What to do with a key that some modalities lack. ``skip`` leaves it out,
            ``partial`` yields what there is, ``error`` raises `DataError` before the first sample of the
            group.
    """

    def __init__(
        self,
        handler: Handler = reraise_exception,
        select_files: Select | None = None,
        rename_files: Rename | None = None,
        missing_key_policy: MissingKeyPolicy = "skip",
    ) -> None:
        if missing_key_policy not in get_args(MissingKeyPolicy):
            raise ValueError(
                f"missing_key_policy is 'skip', 'partial' or 'error', not {missing_key_policy!r}"
            )
        self.handler = handler
        self.select_files = select_files
        self.rename_files = rename_files
        self.missing_key_policy = missing_key_policy
        self.reports: list[GroupReport] = []
        self._logged: set[tuple[str, ...]] = set()

    def __call__(self, src: Iterable[ShardGroup]) -> Iterator[Sample]:
        """Yield the samples of each group.

        ``reports`` has this process's groups of the latest pass, as far as it has got.
        """
        reports = self.reports = []
        room = _MAX_KEPT
        for group in src:
            report = GroupReport(dict(group["urls"]))
            reports.append(report)
            try:
                with self._joined(report) as joined:
                    keys = self._keys_to_yield(joined)
                    if report.missing or report.unkeyed or report.left_out:
                        self._log(report)
                    for sample in joined.read(keys):
                        report.samples += 1
                        yield sample
            except Exception as error:  # noqa: BLE001 (the handler raises it or decides whether to go on)
                report.error = repr(error)
                error.add_note(f"shard group: {report.urls}")
                resumes = self.handler(error)
                self._log(report)  # an error that is not raised
                if not resumes:
                    break
            finally:
                room -= report.keep(room)

    def survey(self, src: Iterable[ShardGroup]) -> Iterator[GroupReport]:
        """Yield what would be left out of each group, from headers alone.

        ``samples`` counts what the policy would yield.
        """
        for group in src:
            report = GroupReport(dict(group["urls"]))
            try:
                with self._joined(report) as joined:
                    report.samples = len(self._keys_to_yield(joined))
            except Exception as error:  # noqa: BLE001 (any error that would end the group)
                report.error = repr(error)
            yield report

    def _log(self, report: GroupReport) -> None:
        content = (*report.urls.values(), report.error or "")
        # Later passes leave out the same content again: one warning is enough.
        log.log(logging.INFO if content in self._logged else logging.WARNING, "%s", report)
        self._logged.add(content)

    @contextmanager
    def _joined(self, report: GroupReport) -> Iterator[JoinedTars]:
        selects = _per_modality(self.select_files, report.urls)
        renames = _per_modality(self.rename_files, report.urls)
        with open_shards(list(report.urls.values())) as descriptors:
            tars = {
                name: index_samples(fd, url, selects[name], renames[name])
                for (name, url), fd in zip(report.urls.items(), descriptors, strict=True)
            }
            joined = JoinedTars(tars)
            report.keys = len(joined.keys)
            report.incomplete = len(joined.keys) - len(joined.common_keys)
            report.missing = {name: Names(len(keys), keys) for name, keys in joined.missing.items() if keys}
            report.unkeyed = {
                name: Names(len(tar.unkeyed), tar.unkeyed) for name, tar in tars.items() if tar.unkeyed
            }
            report.left_out = {
                name: Names(len(tar.left_out), tar.left_out) for name, tar in tars.items() if tar.left_out
            }
            yield joined

    def _keys_to_yield(self, joined: JoinedTars) -> list[str]:
        """Return the keys to yield.

        Raises:
            DataError: The policy refuses a missing key, or extensions collide.
        """
        if self.missing_key_policy == "error":
            joined.check_alignment()
        keys = joined.keys if self.missing_key_policy == "partial" else joined.common_keys
        joined.check_extensions(keys)
        return keys


def _per_modality(given: F | Mapping[str, F] | None, modalities: Iterable[str]) -> dict[str, F | None]:
    if not isinstance(given, Mapping):
        return dict.fromkeys(modalities, given)
    if unknown := given.keys() - set(modalities):
        raise ValueError(
            f"functions for {sorted(unknown)}, which are none of the modalities {list(modalities)}"
        )
    return {name: given.get(name) for name in modalities}


T = TypeVar("T")
Splitter = Callable[[Iterator[ShardGroup]], Iterable[ShardGroup]]


def collate(samples: list[Any]) -> Any:
    """Collate tuples or dicts as webdataset does, but keep arrays or tensors of different shapes as a list.

    webdataset raises an error for these.
    """
    rows = [tuple2dict(sample) for sample in samples]
    ragged = [key for key in rows[0] if len({getattr(row.get(key), "shape", None) for row in rows}) > 1]
    ragged = [key for key in ragged if all(key in row for row in rows)]
    batch = default_collation_fn(
        [{key: value for key, value in row.items() if key not in ragged} for row in rows]
    )
    batch |= {key: [row[key] for row in rows] for key in ragged}
    return {key: batch[key] for key in rows[0]} if isinstance(samples[0], dict) else dict2tuple(batch)


class MultiModalWebDataset(DataPipeline, FluidInterface):
    """`webdataset.WebDataset` for modalities in separate tars, with its other arguments and fluent methods.

    Shards are paired before they are split and shuffled. The stages are `PairedShardList`, ``nodesplitter``,
    ``workersplitter``, shard shuffle, `PairedTarExpander`.

    Args:
        modalities: URLs of the tars of each modality; see `PairedShardList`.
        handler: Called with an error; decides whether to go on, as in webdataset.
        shardshuffle: Number of shards in the shuffle buffer, or False.
        detshuffle: Shuffle by ``seed`` and the number of the pass. Without it, ``seed`` gives every pass the
            same order.
        nodesplitter: Stage that splits shards between nodes. If it leaves this one (this rank) none, a pass
            raises `DataError`: under DistributedDataParallel the others would wait for it for ever.
        workersplitter: Stage that splits shards between workers.
        select_files: See `PairedTarExpander`.
        rename_files: See `PairedTarExpander`.
        empty_check: Raise `DataError` if a pass (in a DataLoader worker: its part of the pass) yields
            nothing.
        seed: None stands for ``WDS_SEED`` of the environment. Without that, ``detshuffle`` counts from 0, and
            other shuffles differ in each pass.
        missing_key_policy: See `PairedTarExpander`.
    """

    def __init__(
        self,
        modalities: Mapping[str, ShardUrls],
        handler: Handler = reraise_exception,
        shardshuffle: int | None = None,
        detshuffle: bool = False,
        nodesplitter: Splitter | None = single_node_only,
        workersplitter: Splitter | None = split_by_worker,
        select_files: Select | None = None,
        rename_files: Rename | None = None,
        empty_check: bool = True,
        seed: int | None = None,
        missing_key_policy: MissingKeyPolicy = "skip",
    ) -> None:
        super().__init__()
        if shardshuffle is None:
            warnings.warn(
                "shardshuffle is None, so shards are not shuffled; set it to False or to a number",
                stacklevel=2,
            )
        if shardshuffle is True:
            warnings.warn("shardshuffle is True, taken as 100; set it to a number", stacklevel=2)
            shardshuffle = 100
        if seed is None and "WDS_SEED" in os.environ:
            seed = int(os.environ["WDS_SEED"])
        self.shards = PairedShardList(modalities)
        self.expander = PairedTarExpander(handler, select_files, rename_files, missing_key_policy)
        self.append(self.shards)
        if nodesplitter is not None:
            self.append(nodesplitter)
            self.append(_RankCheck(len(self.shards)))
        if workersplitter is not None:
            self.append(workersplitter)
        if shardshuffle:
            self.append(
                detshuffled(shardshuffle, seed=seed or 0) if detshuffle else shuffled(shardshuffle, seed=seed)
            )
        self.append(self.expander)
        if empty_check:
            self.append(_EmptyCheck(self.expander))

    def __repr__(self) -> str:
        return repr(self.shards).replace("PairedShardList", type(self).__name__, 1)

    @property
    def reports(self) -> list[GroupReport]:
        """What this process read in its latest pass: samples yielded and keys left out, by shard group."""
        return self.expander.reports

    def survey(self) -> Iterator[GroupReport]:
        """Yield what a pass would leave out of each shard group, from the headers of the tars alone.

        Streams have to be read in full.
        """
        return self.expander.survey(self.shards)

    def batched(
        self, batchsize: int, collation_fn: Callable[[list[Any]], Any] | None = collate, partial: bool = True
    ) -> Self:
        """Batch as webdataset does; images of different sizes become a list instead of an error."""
        return super().batched(batchsize, collation_fn=collation_fn, partial=partial)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


class _NonEmpty(ABC):
    """A pipeline stage that raises an error if nothing passes."""

    def __call__(self, src: Iterable[T]) -> Iterator[T]:
        is_empty = True
        for passing in src:
            is_empty = False
            yield passing
        if is_empty:
            raise self._error()

    @abstractmethod
    def _error(self) -> DataError: ...


class _RankCheck(_NonEmpty):
    """A stage that each rank needs a shard to pass. ``shards``: how many there are for all ranks."""

    def __init__(self, shards: int) -> None:
        self._shards = shards

    def _error(self) -> DataError:
        rank, ranks, *_ = pytorch_worker_info()
        return DataError(
            f"rank {rank} of {ranks} has no shard: nodesplitter gave it none of the "
            f"{counted(self._shards, 'shard')}. Start no more ranks than there are shards, "
            "or make more, smaller shards."
        )


class _EmptyCheck(_NonEmpty):
    """A stage that a sample has to pass."""

    def __init__(self, expander: PairedTarExpander) -> None:
        self._expander = expander

    def _error(self) -> DataError:
        reports = self._expander.reports
        reason = (
            f"all {len(reports)} shard groups are empty; the first: {reports[0]}"
            if reports
            else "fewer shards than workers"
        )
        return DataError(f"No samples found in dataset: {reason}. Set empty_check=False to allow that.")
