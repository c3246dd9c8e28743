"""Plan of a training set: for each sample the split, the shard and the place in it, before a byte is copied.

* `Recipe`: what the user asks for. `make_plan` applies it to the samples of all sources.
* A plan is a table with a row per sample (`PLAN_SCHEMA`), shard by shard in the order of the output. What is
  left out by its weight comes last, with the reason. Equal recipes and samples give equal bytes.
* The card of the set: its splits and sources in counts, bytes, tokens and licences.

Nothing depends on where samples lie, or on a library's random numbers. The split of a sample is decided by
xxh3-64 of its id (or of the value that it shares with others), its place by xxh3-64 of its id with the seed.
"""

from __future__ import annotations

import heapq
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from mm_assets.formats.names import PLAN_FILE, SPLIT_NAME, format_of
from mm_assets.formats.tar import END_BLOCKS
from mm_assets.formats.webdataset.client_files import SetNotes, split_paths
from mm_assets.model.errors import DUPLICATE_ID, DataError, counted, nearest, warn_user
from mm_assets.training_set import Fields, Source

PLAN_SCHEMA = pa.schema(
    [
        pa.field("sample_id", pa.string(), nullable=False),
        pa.field("source", pa.string(), nullable=False),
        pa.field("source_shard", pa.string(), nullable=False),
        pa.field("source_offset", pa.int64(), nullable=False),
        pa.field("source_bytes", pa.int64(), nullable=False),
        pa.field("split", pa.string(), nullable=False),
        pa.field("shard", pa.string()),
        pa.field("offset", pa.int64()),
        pa.field("bytes", pa.int64()),
        pa.field("tokens", pa.int64()),
        pa.field("weight", pa.float64(), nullable=False),
        pa.field("repeats", pa.int32(), nullable=False),
        pa.field("reason", pa.string()),
    ]
)
DEFAULT_SHARD_BYTES = 512 << 20
LEFT_OUT = "left out by its weight"
_ORDER = b"order "  # what is hashed for the order differs from what is hashed for the split
_HASHES = 1 << 64
_AT_ONCE = 1 << 16
MOST_REPEATS = 1_000_000  # of a sample
_LARGEST_SCORE = 1e100  # sums of them stay numbers

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Hashes = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class Recipe:
    """What a training set is to be.

    Args:
        splits: share of each split by its name. Weights are those of the first; the others have each sample
            once.
        seed: of the order; None: samples stay in the order of the sources.
        shard_bytes: most bytes of a tar, unless a single sample is larger.
        shards: number of tars in all, instead.
        weights: of sources by name, 1 for those not named: how often each sample of it is used, on average.
        fields: values of samples that count.

    Raises:
        ValueError: a split has no name of one, or there are fewer shards than splits.
    """

    splits: Mapping[str, float] = field(default_factory=lambda: {"train": 1.0})
    seed: int | None = 0
    shard_bytes: int = DEFAULT_SHARD_BYTES
    shards: int | None = None
    weights: Mapping[str, float] = field(default_factory=dict)
    fields: Fields = field(default_factory=Fields)

    def __post_init__(self) -> None:
        if wrong := [name for name in self.splits if not SPLIT_NAME.fullmatch(name)]:
            raise ValueError(f"splits have names such as train, not {wrong[0]!r:.100}")
        if self.shards is not None and self.shards < len(self.splits):
            raise ValueError(
                f"{counted(self.shards, 'shard')} for {len(self.splits)} splits ({', '.join(self.splits)}): "
                "each split has a shard of its own, or more"
            )

    def to_json(self) -> str:
        """Return it as text, for the metadata of a plan."""
        return json.dumps(asdict(self), sort_keys=True)


def shard_name(split: str, number: int) -> str:
    """Return the name of a shard, without suffix."""
    return f"{split}-{number:06d}"


def split_of(name: str) -> str | None:
    """Return the split of a `shard_name`; None if it is none."""
    split, _, number = name.rpartition("-")
    is_ours = SPLIT_NAME.fullmatch(split) and number.isdecimal() and shard_name(split, int(number)) == name
    return split if is_ours else None


def make_plan(
    sources: Sequence[Source],
    scanned: Mapping[str, pa.Table],
    recipe: Recipe,
    file_of: Callable[[str, int], str] = shard_name,
) -> pa.Table:
    """Return the plan; warn of what comes out otherwise than was asked for.

    Args:
        scanned: the samples of each tar, by its URI (`mm_assets.training_set.scan_tar`).
        file_of: returns the file of a shard, from its split and number.

    Raises:
        DataError: two samples have one id, a weight names no source, the scores of a source are all 0, or no
            sample has the value that decides on splits.
    """
    names = [source.name for source in sources]
    if unknown := [name for name in recipe.weights if name not in names]:
        raise DataError(f"weights: there is no source {unknown[0]!r}; {nearest(unknown[0], names)}")
    tars = [tar for source in sources for tar in source.tars]
    tables = [scanned[tar.uri] for tar in tars]
    samples = pa.concat_tables(tables).combine_chunks()
    counts = [table.num_rows for table in tables]
    of_tar = np.repeat(np.arange(len(tars)), counts)
    of_source = np.array([names.index(tar.source) for tar in tars], np.int64)[of_tar]
    ids = samples.column("sample_id")
    _refuse_duplicates(ids, [tar.place for tar in tars], of_tar)
    splits = list(recipe.splits)
    order = _order(ids, recipe.seed)
    split = _splits(samples, recipe)
    weight, repeats = _repeats(samples.column("score"), of_source, split, order, sources, recipe)
    nbytes = samples.column("bytes").to_numpy()
    shard = np.full(len(samples), -1, np.int64)
    for number, amount in enumerate(_shard_counts(split, repeats, nbytes, recipe)):
        rows = order[(split[order] == number) & (repeats[order] > 0)]
        shard[rows] = _fitting_shards(nbytes[rows], amount, recipe)
    for line in (
        *_unlike_sizes(split, shard, nbytes, recipe),
        *_empty_shares(sources, of_source, split, recipe),
    ):
        warn_user(line)
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    rows = np.lexsort((rank, shard, split, shard < 0))
    shard, split, nbytes, of_tar = shard[rows], split[rows], nbytes[rows], of_tar[rows]
    is_left_out = shard < 0
    found = samples.take(pa.array(rows))
    columns = {
        "sample_id": found.column("sample_id"),
        "source": _taken(names, of_source[rows]),
        "source_shard": _taken([tar.name for tar in tars], of_tar),
        "source_offset": found.column("offset"),
        "source_bytes": nbytes,
        "split": _taken(splits, split),
        "shard": _shard_files(splits, split, shard, file_of),
        "offset": pa.array(_offsets(split, shard, nbytes), mask=is_left_out),
        "bytes": pa.array(nbytes, mask=is_left_out),
        "tokens": found.column("tokens"),
        "weight": weight[rows],
        "repeats": pa.array(repeats[rows], pa.int32()),
        "reason": pa.array(np.where(is_left_out, LEFT_OUT, ""), pa.string(), mask=~is_left_out),
    }
    return pa.table([columns[name] for name in PLAN_SCHEMA.names], PLAN_SCHEMA)


def _refuse_duplicates(ids: pa.ChunkedArray, tars: Sequence[str], of_tar: Ints) -> None:
    if pc.count_distinct(ids).as_py() == len(ids):
        return
    counts = pc.value_counts(ids)
    repeated = counts.field("values").filter(pc.greater(counts.field("counts"), 1))
    rows = pc.indices_nonzero(pc.equal(ids, repeated[0])).to_pylist()
    places = " and ".join(dict.fromkeys(tars[of_tar[row]] for row in rows))
    more = f" (and {len(repeated) - 1} more ids)" if len(repeated) > 1 else ""
    raise DataError(
        f"{places}: {DUPLICATE_ID}: sample id {repeated[0].as_py()!r:.200} occurs {len(rows)} times{more}; "
        "ids are unique in a training set: convert a source with --sample-id-prefix shard"
    )


def _order(ids: pa.ChunkedArray, seed: int | None) -> Ints:
    """Return the rows in the order in which they are used."""
    if seed is None:
        return np.arange(len(ids))
    head = _ORDER + str(seed).encode() + b" "
    # A stable sort: ids that share a hash stay in the order of the sources.
    return np.argsort(_hashes(head, ids), kind="stable")


def _hashes(head: bytes, values: pa.ChunkedArray) -> Hashes:
    digest = xxhash.xxh3_64_intdigest
    hashes = (digest(head + value.encode()) for value in in_slices(values))
    return np.fromiter(hashes, np.uint64, len(values))


def in_slices(values: pa.ChunkedArray) -> Iterator[Any]:
    """Yield values as Python objects, of which there are never many at a time."""
    for start in range(0, len(values), _AT_ONCE):
        yield from values.slice(start, _AT_ONCE).to_pylist()


def _splits(samples: pa.Table, recipe: Recipe) -> Ints:
    """Return the number of each sample's split."""
    by, without = recipe.fields.split_by, samples.column("split_value").null_count
    if by is not None and without:
        what = "value" if by == recipe.fields.split_column else "URL"
        if without == len(samples):
            raise DataError(f"split by {by}: no sample has a {what} there")
        warn_user(
            f"split by {by}: {without:,} of {counted(len(samples), 'sample')} have no {what} there; "
            "a hash of their ids decides"
        )
    hashes = _hashes(b"", pc.coalesce(samples.column("split_value"), samples.column("sample_id")))
    ends = np.cumsum(list(recipe.splits.values()))[:-1]
    bounds = np.array([min(int(end * _HASHES), _HASHES - 1) for end in ends], np.uint64)
    return np.searchsorted(bounds, hashes, side="right").astype(np.int64)


def _empty_shares(sources: Sequence[Source], of_source: Ints, split: Ints, recipe: Recipe) -> Iterator[str]:
    """Yield a line for each source of which a split has nothing, though others give it samples."""
    shape = len(sources), len(recipe.splits)
    counts = np.bincount(of_source * shape[1] + split, minlength=math.prod(shape)).reshape(shape)
    for source, given in zip(sources, counts.tolist(), strict=True):
        empty = [
            name
            for name, mine, all_ in zip(recipe.splits, given, counts.sum(axis=0), strict=True)
            if all_ and not mine
        ]
        if empty and any(given):
            line = f"{source.name}: none of its {counted(sum(given), 'sample')} fell to {', '.join(empty)}"
            has_weight = source.name in recipe.weights and next(iter(recipe.splits)) in empty
            yield line + (", so its weight counts for nothing" if has_weight else "")


def _unlike_sizes(split: Ints, shard: Ints, nbytes: Ints, recipe: Recipe) -> Iterator[str]:
    """Yield a line where shards are larger, or fewer, than was asked for."""
    is_used = shard >= 0
    sizes = np.bincount((split * (shard.max(initial=0) + 1) + shard)[is_used], nbytes[is_used])
    found, larger = (int(np.count_nonzero(sizes > least)) for least in (0, recipe.shard_bytes - END_BLOCKS))
    if recipe.shards is None and larger:
        yield (
            f"shards of more than {recipe.shard_bytes:,} bytes: {larger:,} of {found:,}; each is a single "
            "sample that has more"
        )
    if recipe.shards is not None and found < recipe.shards:
        yield f"{counted(found, 'shard')}, not {recipe.shards:,}: each has a sample or more"


def _repeats(
    scores: pa.ChunkedArray,
    of_source: Ints,
    split: Ints,
    order: Ints,
    sources: Sequence[Source],
    recipe: Recipe,
) -> tuple[Floats, Ints]:
    """Return weight and repeats of each sample.

    The repeats of a source add up to its weight times its samples. A score moves weight among the samples of
    its source. A sample without one has the source's mean.
    """
    weight = np.ones(len(split))
    repeats = np.ones(len(split), np.int64)
    found = scores.to_numpy(zero_copy_only=False)
    for number, source in enumerate(sources):
        rows = order[(of_source[order] == number) & (split[order] == 0)]
        mine = found[rows]
        if recipe.fields.weight_by and not np.isnan(mine).all():
            largest = np.nanmax(mine)
            if largest == 0:
                raise DataError(
                    f"{source.name}: {recipe.fields.weight_by} of all its samples is 0, which is no weight"
                )
            if largest > _LARGEST_SCORE:
                raise DataError(
                    f"{source.name}: {recipe.fields.weight_by} is {largest:g}, too large a weight"
                )
            mean = np.nanmean(mine)
        else:
            mean = 1.0
        weight[rows] = recipe.weights.get(source.name, 1.0) * np.where(np.isnan(mine), mean, mine) / mean
        most = weight[rows].max(initial=0)
        if most > MOST_REPEATS:
            raise DataError(
                f"{source.name}: by weights and scores a sample would be used {most:g} times; "
                f"at most {MOST_REPEATS:,} are possible"
            )
        repeats[rows] = _largest_remainder(weight[rows])
    if (split == 0).any() and not repeats[split == 0].any():
        raise DataError(
            f"weights: they leave out all samples of {next(iter(recipe.splits))}; give a source a larger one"
        )
    return weight, repeats


def _largest_remainder(shares: Floats) -> Ints:
    """Return whole numbers that add up to the rounded sum of the shares, each next to its share.

    Of equal remainders the first ones are rounded up.
    """
    whole = np.floor(shares).astype(np.int64)
    missing = math.floor(math.fsum(shares) + 0.5) - int(whole.sum())
    up = np.argsort(whole - shares, kind="stable")[: max(missing, 0)]
    whole[up] += 1
    return whole


def _shard_counts(split: Ints, repeats: Ints, nbytes: Ints, recipe: Recipe) -> list[int]:
    """Return the number of shards of each split: none for a split without samples."""
    used = repeats > 0
    totals = np.bincount(split[used], nbytes[used], len(recipe.splits))
    samples = np.bincount(split[used], minlength=len(recipe.splits))
    if recipe.shards is None:
        wanted = np.ceil(totals / max(recipe.shard_bytes - END_BLOCKS, 1)).astype(np.int64)
    else:
        wanted = np.maximum(_largest_remainder(totals / max(totals.sum(), 1) * recipe.shards), samples > 0)
        for _ in range(int(wanted.sum()) - recipe.shards):  # for splits that would have got none
            wanted[np.argmax(wanted)] -= 1
    return np.minimum(np.maximum(wanted, 1), samples).tolist()


def _fitting_shards(nbytes: Ints, shards: int, recipe: Recipe) -> Ints:
    """Return the shard of each sample; more shards if one of several samples were larger than asked for."""
    is_ordered = recipe.seed is None
    most = recipe.shard_bytes - END_BLOCKS
    while True:
        found = _shards(nbytes, shards, is_ordered)
        is_too_large = (np.bincount(found, nbytes) > most) & (np.bincount(found) > 1)
        if recipe.shards is not None or not is_too_large.any():
            return found
        if is_ordered:
            return _filled(nbytes, most)
        shards = min(shards + max(shards // 100, 1), len(nbytes))


def _filled(nbytes: Ints, most: int) -> Ints:
    """Return the shard of each sample where shards are filled one after the other."""
    found = np.empty(len(nbytes), np.int64)
    shard, size = 0, 0
    for row, more in enumerate(nbytes.tolist()):
        if size and size + more > most:
            shard, size = shard + 1, 0
        found[row] = shard
        size += more
    return found


def _shards(nbytes: Ints, shards: int, is_ordered: bool) -> Ints:
    """Return the shard of each sample, so that shards are equal in bytes.

    Of ordered samples each shard has a stretch. Else the next sample goes to the smallest shard, large ones
    first, in classes of which each has samples up to twice as large as the one after it. Inside of a class
    the order decides: which samples come together is left to chance.
    """
    if is_ordered:
        middles = np.cumsum(nbytes) - nbytes / 2
        stretches = np.minimum((middles / max(nbytes.sum(), 1) * shards).astype(np.int64), shards - 1)
        return np.unique(stretches, return_inverse=True)[1].astype(np.int64)  # one may have got none
    found = np.empty(len(nbytes), np.int64)
    sizes = [(0, shard) for shard in range(shards)]
    for row in np.argsort(-np.floor(np.log2(nbytes)), kind="stable").tolist():
        size, shard = sizes[0]
        found[row] = shard
        heapq.heapreplace(sizes, (size + int(nbytes[row]), shard))
    return found


def _offsets(split: Ints, shard: Ints, nbytes: Ints) -> Ints:
    """Return the byte offset of each sample in its shard; the rows are in order."""
    ends = np.cumsum(nbytes)
    starts = ends - nbytes
    is_first = np.ones(len(shard), bool)
    is_first[1:] = (shard[1:] != shard[:-1]) | (split[1:] != split[:-1])
    first = np.flatnonzero(is_first)
    return starts - np.repeat(starts[first], np.diff([*first, len(shard)]))


def _taken(values: Sequence[str], rows: Ints) -> pa.Array:
    return pa.array(values, pa.string()).take(pa.array(rows))


def _shard_files(
    splits: Sequence[str], split: Ints, shard: Ints, file_of: Callable[[str, int], str]
) -> pa.Array:
    pairs, places = np.unique(np.stack([split, shard]), axis=1, return_inverse=True)
    names = [None if number < 0 else file_of(splits[of], number) for of, number in pairs.T.tolist()]
    return pa.array(names, pa.string()).take(pa.array(places.ravel()))


def totals(plan: pa.Table, by: str) -> list[dict[str, Any]]:
    """Return for each split or source: samples, those used, uses with repeats, bytes and tokens."""
    is_used = pc.greater(plan.column("repeats"), 0)
    used_bytes = pc.if_else(is_used, plan.column("source_bytes"), 0)
    uses = pc.cast(plan.column("repeats"), pa.int64())
    # Products and sums of tokens may have more than 64 bits.
    tokens = pc.multiply(*(pc.cast(of, pa.decimal256(19)) for of in (plan.column("tokens"), uses)))
    table = pa.table(
        {
            by: plan.column(by),
            "samples": pa.array(np.ones(plan.num_rows, np.int64)),
            "used": pc.cast(is_used, pa.int64()),
            "uses": uses,
            "bytes": used_bytes,
            "tokens": tokens,
        }
    )
    names = ("samples", "used", "uses", "bytes", "tokens")
    found = table.group_by(by, use_threads=False).aggregate([(name, "sum") for name in names])
    return [
        {by: row[by], **{name: _whole(row[f"{name}_sum"]) for name in names}} for row in found.to_pylist()
    ]


def _whole(number: Any) -> int | None:
    return None if number is None else int(number)


_CHAPTERS = """
## Splits

| Split | Shards | Samples | Uses | Bytes | Tokens |
|---|---:|---:|---:|---:|---:|
{splits}
The split is decided by {decided}, {order}. *Uses* counts a sample as often
as its `repeats` in `{plan}` say: a loader repeats it, the shards have it once. Tokens are those of all uses;
bytes are those of tars.

## Sources

| Source | Licence | Samples | Weight | In the set | Uses | Bytes |
|---|---|---:|---:|---:|---:|---:|
{sources}
`{plan}` has a row for each sample of the sources: where it was, where it is, and why it is not in the set.
"""


def set_notes(plan: pa.Table, sources: Sequence[Source], recipe: Recipe) -> SetNotes:
    """Return licences and chapters of the card."""
    shards: dict[str, set[str]] = {}
    for found in plan.group_by(["split", "shard"]).aggregate([]).to_pylist():
        shards.setdefault(found["split"], set()).update(() if found["shard"] is None else (found["shard"],))
    splits = "".join(
        _row(f"`{of['split']}`", len(shards[of["split"]]), of["used"], of["uses"], of["bytes"], of["tokens"])
        for of in totals(plan, "split")
    )
    by_name = {of["source"]: of for of in totals(plan, "source")}
    rows = ""
    for source in sources:
        of = by_name.get(source.name, dict.fromkeys(("samples", "used", "uses", "bytes"), 0))
        weight = f"{recipe.weights.get(source.name, 1.0):g}"
        rows += _row(
            f"`{source.name}`",
            ", ".join(source.licences) or "not stated",
            of["samples"],
            weight,
            of["used"],
            of["uses"],
            of["bytes"],
        )
    by = recipe.fields.split_by
    decided = "a hash of the sample's id" if by is None else f"a hash of `{by}`"
    order = (
        "the order is that of the sources" if recipe.seed is None else f"the order by the seed {recipe.seed}"
    )
    licences = tuple(dict.fromkeys(text for source in sources for text in source.licences))
    chapters = _CHAPTERS.format(splits=splits, sources=rows, decided=decided, order=order, plan=PLAN_FILE)
    return SetNotes(licences, chapters)


def _row(*cells: Any) -> str:
    shown = (
        "–" if cell is None else f"{cell:,}" if isinstance(cell, int) else _plain(cell) for cell in cells
    )
    return f"| {' | '.join(shown)} |\n"


def _plain(text: str) -> str:
    """Return text that cannot end a cell: names are those of folders."""
    return " ".join(text.split()).replace("|", "\\|")


def plain_card(kind: str, splits: Sequence[str], notes: SetNotes) -> str:
    """Return ``README.md`` for shards of a format without a card of its own; each split is in its folder."""
    paths = split_paths({name: f"{name}/*" for name in splits})
    head = f"---\nconfigs:\n- config_name: default\n  data_files:\n{paths}{notes.matter()}---\n"
    title = "# Interleaved image-text samples"
    return f"{head}\n{title}\n\n{format_of(kind).title} files of whole samples.\n{notes.chapters}"
