"""`MultiModalWebDataset`: a webdataset whose modalities are in separate tars."""

from __future__ import annotations

import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Self, TypeVar

from webdataset.compat import FluidInterface
from webdataset.filters import default_collation_fn, dict2tuple, tuple2dict
from webdataset.filters import detshuffle as detshuffled
from webdataset.filters import shuffle as shuffled
from webdataset.handlers import reraise_exception
from webdataset.pipeline import DataPipeline
from webdataset.shardlists import single_node_only, split_by_worker
from webdataset.utils import pytorch_worker_info

from mm_assets.formats.paired.expander import Handler, MissingKeyPolicy, PairedTarExpander, Rename, Select
from mm_assets.formats.paired.report import GroupReport
from mm_assets.formats.paired.shard_list import PairedShardList, ShardGroup, ShardUrls
from mm_assets.interleaved.counted import counted
from mm_assets.interleaved.errors import DataError

__all__ = ["MultiModalWebDataset"]

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
