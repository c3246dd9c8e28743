"""Command ``mm-assets reshard SRC… DST``: the set to train from."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mm_assets.cli.arguments import (
    add_layout_flags,
    add_policy_flag,
    flag,
    layout_flags,
    location,
    names,
    number_of,
    parsed,
    reading_of,
    refuse_inapplicable_flags,
)
from mm_assets.formats.names import TITLES
from mm_assets.formats.partitions import parse_bytes
from mm_assets.model.errors import counted
from mm_assets.settings import Settings, split_shares
from mm_assets.terminal import fail

if TYPE_CHECKING:
    from mm_assets.pool import JobPool
    from mm_assets.training_set import Source
    from mm_assets.training_set.build import MadeSet
    from mm_assets.training_set.plan import Recipe
    from mm_assets.training_set.proof import Proof

_KINDS = ("webdataset", "mds", "parquet", "arrow_cache")


def reshard_arguments(commands: Any) -> None:
    """Declare the command and its options."""
    parser = commands.add_parser(
        "reshard", help="make the set to train from: shuffled, split, in equal shards"
    )
    parser.add_argument(
        "sources", metavar="SRC", nargs="+", type=location, help=f"file, folder, glob or URL of {TITLES} data"
    )
    parser.add_argument("dst", metavar="DST", type=location, help="folder or URL for the set")
    parser.add_argument("--to", default="webdataset", choices=_KINDS, help="format of the shards")
    size = parser.add_mutually_exclusive_group()
    size.add_argument(
        "--shard-size",
        type=parsed(parse_bytes),
        metavar="BYTES",
        help="most bytes of a shard of several samples (512MiB)",
    )
    size.add_argument(
        "--shards", type=number_of("a number of shards", 1, 7), metavar="N", help="number of shards"
    )
    order = parser.add_mutually_exclusive_group()
    order.add_argument("--seed", type=number_of("a seed", 0, 18), default=0, help="of the order (default: 0)")
    order.add_argument("--no-shuffle", action="store_true", help="keep the order of the sources")
    parser.add_argument(
        "--split",
        type=parsed(split_shares),
        default=(("train", 1.0),),
        metavar="NAME=SHARE,…",
        help="shares of splits, such as train=0.98,validation=0.02; a hash of the id decides",
    )
    parser.add_argument(
        "--split-by",
        metavar="COLUMN",
        help="samples with one value of this column, or of domain(COLUMN) of URLs, are in one split",
    )
    parser.add_argument(
        "--weights",
        type=names,
        default=(),
        metavar="SRC=W,…",
        help="how often samples of a source are used in the first split, on average (default: 1)",
    )
    parser.add_argument(
        "--weight-by", metavar="COLUMN", help="column or score by which samples of a source share its weight"
    )
    parser.add_argument(
        "--tokens", metavar="COLUMN", help="column or score with the number of tokens of a sample"
    )
    add_policy_flag(parser)
    parser.add_argument("--overwrite", action="store_true", help="replace a set of another plan")
    parser.add_argument(
        "--prove", action="store_true", help="read sources and set again, and prove that nothing is missing"
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="tell what would be written, and write nothing"
    )
    workers = number_of("a number of processes", 0, 9)
    parser.add_argument("--workers", type=workers, default=0, help="worker processes (default: one per core)")
    add_layout_flags(parser)
    parser.set_defaults(run=run_reshard)


def run_reshard(options: argparse.Namespace) -> int:
    """Plan and make the set; shards that fail are named, and set the exit code."""
    from mm_assets.dataset import refuse_nested
    from mm_assets.formats.raw_shards import location_of
    from mm_assets.storage.files import absolute, no_empty_folders
    from mm_assets.storage.temporary import TemporaryFolder
    from mm_assets.training_set import refuse_shared_files, short_names
    from mm_assets.training_set.build import TrainingSet
    from mm_assets.training_set.proof import make_proven

    started = time.monotonic()
    places = [location_of(place) for place in options.sources]
    target = absolute(options.dst)
    for place in places:
        refuse_nested(place, target)
    known = short_names(places)
    recipe = _recipe(options, dict(zip(options.sources, known, strict=True)))
    converted = TemporaryFolder()
    try:
        with no_empty_folders(target), _pool(options.workers, target, places, converted.path) as pool:
            found = [
                _source(options, place, name, f"{converted.path}/{number}")
                for number, (place, name) in enumerate(zip(places, known, strict=True))
            ]
            sources = [source for source, _ in found]
            files = {place: [tar.place for tar in of.tars] for place, of in zip(places, sources, strict=True)}
            refuse_shared_files(files)
            lost = [
                f"{place}: {line}" for place, (_, lines) in zip(places, found, strict=True) for line in lines
            ]
            made = TrainingSet(target, options.to)
            if options.dry_run:
                _print_splits(made.plan(sources, recipe, pool), recipe.splits, {})
                for line in lost:
                    print(f"  {line}")
                return 0
            proof: Proof | None = None
            if options.prove:
                report, proof = make_proven(made, sources, recipe, pool, options.overwrite)
            else:
                report = made.make(sources, recipe, pool, options.overwrite)
    finally:
        converted.remove()
    _print_report(options.dst, report, recipe.splits, time.monotonic() - started)
    for line in lost:
        print(f"  {line}")
    lines = [" ".join(line.split()) for line in report.failures]
    if proof is not None:
        left_out = f", {proof.left_out} left out by their weight" if proof.left_out else ""
        read = "what was read of the sources" if lost else "the sources"
        verdict = f"differs from {read}" if proof.differences else f"proven equal to {read}"
        print(f"  {verdict}: {counted(proof.samples, 'sample')}{left_out}, digest {proof.digest}")
        lines = [f"difference: {line}" for line in proof.differences]
    for line in lines:
        fail(line)
    return 1 if lines else 0


def _recipe(options: argparse.Namespace, names_of: Mapping[str, str]) -> Recipe:
    from mm_assets.training_set import Fields
    from mm_assets.training_set.plan import DEFAULT_SHARD_BYTES, Recipe

    return Recipe(
        splits=dict(options.split),
        seed=None if options.no_shuffle else options.seed,
        shard_bytes=options.shard_size or DEFAULT_SHARD_BYTES,
        shards=options.shards,
        weights=_weights(options.weights, names_of),
        fields=Fields(options.split_by, options.weight_by, options.tokens),
    )


def _weights(given: Sequence[str], names_of: Mapping[str, str]) -> dict[str, float]:
    """Return the weights by the names of sources, which users may give as they gave the sources, too."""
    found: dict[str, float] = {}
    for text in _with_commas(given):
        name, _, number = text.rpartition("=")
        try:
            weight = float(number)
        except ValueError:
            weight = -1.0
        if not name or not 0 <= weight < float("inf"):
            raise ValueError(f"--weights {text!r}: write it as SRC=NUMBER, such as books=2")
        found[names_of.get(name, name)] = weight
    return found


def _with_commas(given: Sequence[str]) -> list[str]:
    """Return the weights, of which a brace list as the name has commas, too."""
    found: list[str] = []
    for text in given:
        found = [*found[:-1], f"{found[-1]},{text}"] if found and "=" not in found[-1] else [*found, text]
    return found


def _pool(workers: int, target: str, places: Sequence[str], temporary: str) -> JobPool:
    from mm_assets.pool.workers import WorkerPool
    from mm_assets.storage.files import is_remote

    settings = Settings.load()
    if settings.engine != "ray":
        return WorkerPool(workers, may_fork=True, time_limit=settings.shard_timeout)
    from mm_assets.pool.ray import RayPool

    written = [] if is_remote(target) else [target]
    read = [place for place in (*places, temporary) if not is_remote(place)]
    return RayPool(settings.ray_address, workers, settings.shard_timeout, written, read)


def _source(options: argparse.Namespace, place: str, name: str, folder: str) -> tuple[Source, list[str]]:
    """Return a source of our tars, and lines on what is lost of it.

    Data of any other kind, and tars with what is denied, are made such tars first, in ``folder``, as
    ``convert`` does.
    """
    from mm_assets.cli.convert import lost_lines
    from mm_assets.dataset import Dataset, arguments_of, deny_list_of, holds_denied
    from mm_assets.formats.registry import detect_format, reader_for
    from mm_assets.storage.errors import located
    from mm_assets.training_set import our_tars

    with located(place):
        kind = detect_format(place)
        refuse_inapplicable_flags(options, kind, place)
        arguments = {**arguments_of(kind, [place]), "materialize": True, **reading_of(options, kind, place)}
        reader = reader_for(kind, place, **arguments)
        if kind == "webdataset" and (found := our_tars(place, name)) is not None:
            deny = deny_list_of(Settings.load())
            if not (deny and holds_denied(reader, deny, options.workers)):
                return found, []
        try:
            report = Dataset(reader).write(
                folder,
                "webdataset",
                workers=options.workers,
                on_materialize_error=options.on_materialize_error,
            )
        except ValueError as error:
            if len(options.sources) == 1 or not (given := layout_flags(options)):
                raise
            raise ValueError(
                f"{place}: {error}; {flag(given[0])} is for all sources: convert one with other fields first"
            ) from error
        digests = {part.uri: part.digest for part in report.partitions}
        made_of = {part.uri: part.source_files for part in report.partitions}
        made = our_tars(folder, name)
    if made is None:
        raise ValueError(f"{place}: no samples")
    # Their times differ each time, their content does not.
    made = replace(
        made,
        tars=tuple(replace(tar, stamp=digests[tar.uri], made_of=made_of[tar.uri][0]) for tar in made.tars),
    )
    return made, lost_lines(report)


def _print_report(target: str, report: MadeSet, splits: Iterable[str], seconds: float) -> None:
    from mm_assets.training_set.plan import split_of

    samples, nbytes = (sum(getattr(shard, name) for shard in report.shards) for name in ("samples", "nbytes"))
    kept = sum(shard.is_kept for shard in report.shards)
    print(
        f"{target}: {counted(len(report.shards), 'shard')}, {counted(samples, 'sample')}, "
        f"{nbytes / 1e6:.1f} MB, {seconds:.1f} s"
    )
    written: dict[str | None, list[int]] = {}
    for shard in report.shards:
        written.setdefault(split_of(shard.name), []).append(shard.nbytes)
    _print_splits(report.plan, splits, written)
    if kept:
        print(f"  there already, of the same samples: {counted(kept, 'shard')}")


def _print_splits(plan: Any, splits: Iterable[str], written: Mapping[str | None, Sequence[int]]) -> None:
    """Print a line for each split; a hash may leave one without samples, and this is told, too.

    Args:
        written: bytes of the shards of each split; of others what they have as tars.
    """
    import pyarrow.compute as pc

    from mm_assets.training_set.plan import totals

    made = totals(plan, "split")
    for of in made:
        mine = plan.filter(
            pc.and_(pc.equal(plan.column("split"), of["split"]), pc.is_valid(plan.column("shard")))
        )
        tars = mine.group_by("shard").aggregate([("source_bytes", "sum")]).column("source_bytes_sum")
        sizes = written.get(of["split"]) or tars.to_pylist()
        spread = (max(sizes) - min(sizes)) / max(sizes) if sizes else 0.0
        left_out = of["samples"] - of["used"]
        parts = [
            f"{of['split']}: {counted(len(sizes), 'shard')}, {counted(of['used'], 'sample')}",
            f"{sum(sizes) / 1e6:.1f} MB" + ("" if written else " as tars"),
            f"shards differ by {spread:.2%}",
            *([f"{of['uses']} uses"] if of["uses"] != of["used"] else []),
            *([f"{of['tokens']} tokens"] if of["tokens"] is not None else []),
            *([f"left out by their weight: {left_out}"] if left_out else []),
        ]
        print(f"  {', '.join(parts)}")
    for empty in sorted(set(splits).difference(of["split"] for of in made)):
        print(f"  {empty}: no sample fell to it: raise its share, or leave it out")
