"""Retirement of raw shards that are gone: their content is removed from every output, and a note is kept.

ledger/retired/<partition>.json   what was retired, and when; written before anything is removed
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from mm_assets.accounting import (
    BY_ASSET,
    CACHE,
    DERIVED,
    DERIVED_FOLDERS,
    LANCE,
    LEDGER_FOLDER,
    OUTPUTS,
    TARS,
    index_folder,
    stated_partitions,
)
from mm_assets.accounting.accounts import Ledger
from mm_assets.accounting.formats import accounted_format
from mm_assets.accounting.proof import Evidence, ProofStore
from mm_assets.accounting.survey_store import SurveyStore
from mm_assets.formats.names import partition_filename
from mm_assets.model.errors import counted
from mm_assets.storage.files import (
    exists,
    filesystem,
    is_remote,
    join,
    local_path,
    open_binary,
    remove,
    staged,
    sweep,
)
from mm_assets.storage.small_files import seal, unseal
from mm_assets.storage.stamps import parallel_map

FORMAT = 1
RETIRED = "retired"
_ASSETS = (*BY_ASSET, *DERIVED_FOLDERS)


class Retirement:
    """Removal of partitions from all outputs below ``root`` (a folder or URL).

    Outputs are removed before what they are made from, and accounts last, so that a retirement that was
    interrupted is found and completed by the next one.
    """

    def __init__(self, root: str) -> None:
        self._root = root
        self._folder = join(root, LEDGER_FOLDER, RETIRED)
        self._ledger = Ledger(root)
        self._surveys = SurveyStore(root)
        self._proofs = ProofStore(root)

    def partitions(self) -> set[str]:
        """Return the partitions of which anything is in the storage, and those of unfinished retirements."""
        evidence = Evidence(self._root)
        found = {partition for output in OUTPUTS for partition in evidence.of(output.asset)}
        for asset in DERIVED_FOLDERS:
            found.update(self._ledger.named(asset))
        for output in OUTPUTS:
            if (table := accounted_format(output.kind).table) is not None and self._has_table():
                found.update(table.partitions(output.uri(self._root, "")))
        return found.union(self._surveys.partitions(), self.unfinished())

    def unfinished(self) -> set[str]:
        """Return the partitions whose retirement was interrupted."""
        noted = stated_partitions(self._folder, ".json")
        return {name for name in noted if any(e["finished"] is None for e in self._note(name))}

    def run(
        self, partitions: Sequence[str], forget: Callable[[Sequence[str]], object] = lambda _: None
    ) -> Iterator[str]:
        """Remove partitions; may be repeated after a crash.

        Args:
            partitions: partitions whose raw shards are gone.
            forget: takes them out of the orchestrator, after all outputs.

        Yields:
            A line for each step that is done.
        """
        if not is_remote(self._folder):
            sweep(self._folder)
        parallel_map(self._begin, partitions, self._root)
        for name, step in (
            (LANCE.folder, self._remove_rows),
            (TARS.folder, self._remove_tars),
            (CACHE.folder, self._remove_caches),
        ):
            step(partitions)
            yield name
        for output in reversed(OUTPUTS):
            if output.format.is_file and output is not TARS:
                self._remove(output.uri(self._root, name) for name in partitions)
                yield output.folder
            for asset in DERIVED.get(output.asset, ()):
                folder = join(self._root, DERIVED_FOLDERS[asset])
                self._remove(join(folder, f"{partition_filename(name)}.parquet") for name in partitions)
                yield DERIVED_FOLDERS[asset]
        self._remove(self._surveys.uri(name) for name in partitions)
        self._proofs.drop(set(partitions))
        yield "proof"
        self._remove(
            uri for asset in _ASSETS for name in partitions for uri in self._ledger.uris(asset, name)
        )
        yield LEDGER_FOLDER
        forget(partitions)
        parallel_map(self._finish, partitions, self._root)

    def _remove_rows(self, partitions: Sequence[str]) -> None:
        if self._has_table():
            from mm_assets.formats.lance.reader_writer import InterleavedLanceWriter

            InterleavedLanceWriter(LANCE.place(self._root, "")).remove(set(partitions))

    def _remove_tars(self, partitions: Sequence[str]) -> None:
        from mm_assets.formats.webdataset.writer import TarFolder

        folder = join(self._root, TARS.folder)
        if exists(folder):
            tars = TarFolder(folder, None, index_folder(self._root, "tars"))
            tars.withdraw([TARS.uri(self._root, name).rpartition("/")[2] for name in partitions])
            tars.finish()

    def _remove_caches(self, partitions: Sequence[str]) -> None:
        from mm_assets.formats.arrow_cache.build import sweep_folders, withdraw_cache

        folder = join(self._root, CACHE.folder)
        if not exists(folder):
            return
        if not is_remote(folder):
            for name in partitions:
                withdraw_cache(Path(local_path(CACHE.place(self._root, name))))
            sweep_folders(Path(local_path(folder)))
            return
        self._remove(CACHE.uri(self._root, name) for name in partitions)  # without it no reader sees the rest
        for name in partitions:
            place = CACHE.place(self._root, name)
            if exists(place):
                fs, path = filesystem(place)
                fs.rm(path, recursive=True)

    def _has_table(self) -> bool:
        return exists(join(LANCE.place(self._root, ""), "_versions"))

    def _begin(self, partition: str) -> None:
        """Note what is about to be removed, unless an interrupted retirement has done so."""
        entries = self._note(partition)
        if any(entry["finished"] is None for entry in entries):
            return
        outputs = {}
        for asset in _ASSETS:
            for record in self._ledger.records(asset, [partition]).values():
                written = record.account.get("written", {})
                counts = {name: written[name] for name in ("rows", "samples") if name in written}
                outputs[asset] = {"version": record.version, **counts}
        self._write_note(partition, [*entries, {"started": _now(), "finished": None, "outputs": outputs}])

    def _finish(self, partition: str) -> None:
        entries = [{**e, "finished": e["finished"] or _now()} for e in self._note(partition)]
        self._write_note(partition, entries)

    def _note(self, partition: str) -> list[dict[str, Any]]:
        uri = self._note_uri(partition)
        if not exists(uri):
            return []
        with open_binary(uri) as file:
            data = file.read()
        try:
            return list(unseal(data)["retirements"])
        except (ValueError, LookupError) as error:
            raise ValueError(f"{uri}: not a note on a retirement: {error}; move it away") from error

    def _write_note(self, partition: str, entries: Sequence[dict[str, Any]]) -> None:
        with staged(self._note_uri(partition)) as file:
            with open(file.path, "wb") as stream:
                note = {"format": FORMAT, "partition": partition, "retirements": entries}
                stream.write(seal(note, indent=1))
            file.publish()

    def _note_uri(self, partition: str) -> str:
        return join(self._folder, f"{partition_filename(partition)}.json")

    def _remove(self, uris: Iterable[str]) -> None:
        parallel_map(remove, uris, self._root)


def retirable(
    candidates: Collection[str], listed: Collection[str], named: Collection[str], root: str
) -> list[str]:
    """Return the partitions to look at, sorted: those named, else those that the listing lacks.

    Raises:
        ValueError: nothing is known of a named one, or, where none is named, no known shard is listed: then
            other raw shards are meant than those of this storage.
    """
    if named:
        unknown = [name for name in named if name not in candidates]
        if unknown:
            raise ValueError(f"{root}: no shard {unknown[0]!r} here; retired already, or misspelt?")
        return sorted(set(named))
    missing = sorted(set(candidates).difference(listed))
    if missing and len(missing) == len(candidates):
        raise ValueError(
            f"{root}: none of its {counted(len(candidates), 'shard')} is among the raw shards, as if "
            "MM_RAW_SHARDS named others; name the shards to retire them all the same"
        )
    return missing


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
