"""Commands of the graph without browser or daemon; here, the answer of a run that had nothing to do.

To find that nothing is to do, `mm-assets run` imports Dagster and reads all records: seconds.
`StandingAnswer` keeps what it printed, with digests of all that it went by. While these are the same, so is
the answer:

* the code, the settings, files that settings name, and the raw shards with their versions;
* Dagster's databases, as far as a look reads them: events, checks, runs, backfills, keys and values;
* each file below the storage root: size, times and inode, and the bytes of all but the data files.

That is more than a look goes by. Where one of them cannot be told (a bucket, Postgres, plugins), nothing is
kept. Nothing here imports Dagster.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sqlite3
import sys
import sysconfig
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import xxhash

from mm_assets import __version__
from mm_assets.accounting import OUTPUTS, TRAINING_FOLDER
from mm_assets.formats.raw_shards import Listing, RawLocations
from mm_assets.headless.instance import CONFIGURATION, configuration_of, home_in_force
from mm_assets.model.errors import warning_line
from mm_assets.settings import Settings
from mm_assets.settings_file import given_settings
from mm_assets.storage.files import is_remote, local_path, refuse_unwritable, replace_file, storage_root
from mm_assets.storage.small_files import seal, unseal

_FILE = "nothing_to_do.json"  # in the home
# What a look reads of the databases of Dagster's own layout. Ids only grow, and rows of events never change.
_READ = {
    "history/runs.db": (
        "SELECT status, count(*), max(id), max(update_timestamp) FROM runs GROUP BY status",
        "SELECT status, count(*), max(id) FROM bulk_actions GROUP BY status",
        "SELECT key, value FROM kvs ORDER BY key",
    ),
    "history/runs/index.db": (
        "SELECT count(*), min(id), max(id) FROM event_logs",
        "SELECT asset_key, wipe_timestamp, last_run_id, asset_details FROM asset_keys ORDER BY id",
        "SELECT partitions_def_name, partition FROM dynamic_partitions ORDER BY id",
        "SELECT execution_status, count(*), max(id), max(evaluation_event_storage_id),"
        " max(materialization_event_storage_id) FROM asset_check_executions GROUP BY execution_status",
    ),
}
_ENDED = frozenset({"SUCCESS", "FAILURE", "CANCELED"})  # statuses of runs
_VARIABLES = ("MM_", "AWS_", "DAGSTER_", "PYTHON", "FSSPEC_")  # how those of the environment begin
# Settings that name no file, or whose files are looked at by themselves.
_OF_NO_FILE = frozenset({"MM_RAW_SHARDS", "MM_STORAGE", "MM_ALERTS", "MM_UI_URL", "MM_RAY_ADDRESS"})
_DATA_FOLDERS = frozenset({*(output.folder.partition("/")[0] for output in OUTPUTS), TRAINING_FOLDER})
_DATA_SUFFIXES = (".parquet", ".tar", ".lance", ".arrow")


class _Untold(Exception):
    """Something cannot be told without Dagster, or not for less than a look."""


@dataclass
class StandingAnswer:
    """What a look goes by, as digests; that of the storage is empty until `see_storage`."""

    home: Path
    root: str
    surroundings: str
    storage: str = ""

    @classmethod
    def begin(cls, settings: Settings, listing: Listing) -> Self | None:
        """Return the digest of all but the storage; None if a look can keep no answer."""
        home, root = home_in_force(), storage_root(settings.storage)
        if settings.plugins or listing.unmatched or settings.fresh_within is not None:
            return None
        try:
            parts = (_code(), _given(), _raw(listing), _databases(home))
            return cls(home, root, _digest([root, os.getcwd(), *parts]))
        except (_Untold, OSError, ValueError, sqlite3.Error):
            return None

    def see_storage(self) -> None:
        """Take the digest of what is stored now; to be called before a look reads it."""
        with suppress(_Untold, OSError):
            self.storage = _tree(self.root)

    def keep(self, text: str) -> None:
        """Keep what a look printed that went by this, and found nothing to do."""
        if self.storage:
            fields = {"surroundings": self.surroundings, "storage": self.storage, "text": text}
            replace_file(str(self.home / _FILE), seal(fields))

    def kept(self) -> str | None:
        """Return what such a look printed, if all that it went by is the same; None if not."""
        try:
            fields = unseal((self.home / _FILE).read_bytes())
        except (OSError, ValueError):
            return None
        if fields.get("surroundings") != self.surroundings:
            return None
        self.see_storage()
        return str(fields["text"]) if fields.get("storage") == self.storage else None


def print_standing_answer() -> bool:
    """Print what `mm-assets run` printed when it found nothing to do, if it would again; return whether.

    If it is not sure, nothing is printed.

    Raises:
        OSError: the storage cannot be written.
    """
    started = time.monotonic()
    home = home_in_force()
    if not (home / _FILE).exists():
        return False
    settings = Settings.load()
    refuse_unwritable(settings.storage)
    try:
        root = storage_root(settings.storage)
        locations = RawLocations(settings.raw_shards, excluded=root, missing_keys=settings.missing_keys)
        listing = locations.shards(settings.shards_per_partition)
    except (OSError, ValueError):  # the run tells
        return False
    look = StandingAnswer.begin(settings, listing)
    text = None if look is None else look.kept()
    if text is None:
        return False
    for line in listing.warnings:
        print(warning_line(line), file=sys.stderr)
    print(text, end="")
    print_seconds(started)
    return True


def print_seconds(started: float) -> None:
    """Print how long a command took that began at this `time.monotonic`."""
    print(f"whole run: {time.monotonic() - started:.1f} s")


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()


def _code() -> list[Any]:
    """Return what tells the program apart from another: its files, Python, and what is installed."""
    package = Path(__file__).parents[1]
    stamps = [_stamp(path, os.stat(path)) for path in _files(str(package)) if path.endswith(".py")]
    installed = [os.stat(sysconfig.get_path(name)).st_mtime_ns for name in ("purelib", "platlib")]
    return [__version__, sys.version, stamps, installed]


def _given() -> list[Any]:
    """Return all settings, other variables that matter, and the state of files that settings name."""
    given = given_settings()
    variables = {name: text for name, text in os.environ.items() if name.startswith(_VARIABLES)}
    named = []
    for name in sorted(given.keys() - _OF_NO_FILE):
        for piece in {given[name], *re.split(r"[\s,=]+", given[name])}:
            if "://" in piece:
                raise _Untold
            path = os.path.expanduser(piece)
            if piece and os.path.lexists(path):
                named.append([name, piece, _tree(path)])
    return [sorted(given.items()), sorted(variables.items()), repr(given.stores), sorted(named)]


def _raw(listing: Listing) -> list[Any]:
    return [[key, shard.version] for key, shard in sorted(listing.items())]


def _databases(home: Path) -> list[Any]:
    """Return what a look reads of Dagster's databases, where they are those of the default configuration."""
    if configuration_of(home).read_bytes() != CONFIGURATION.read_bytes():
        raise _Untold
    found = []
    for name, queries in _READ.items():
        with closing(sqlite3.connect(f"{(home / name).as_uri()}?mode=rw", uri=True)) as connection:
            found += [connection.execute(query).fetchall() for query in queries]
    if any(status not in _ENDED for status, *_ in found[0]):
        raise _Untold  # the run finds out whether it was lost
    return found


def _files(folder: str, above: tuple[tuple[int, int], ...] = ()) -> Iterator[str]:
    """Yield the files below a folder, sorted, also those behind links to folders."""
    found = os.stat(folder)
    if (place := (found.st_dev, found.st_ino)) in above:  # links in a circle
        raise _Untold
    below = []
    with os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            if entry.is_dir():
                below.append(entry.path)
            else:
                yield entry.path
    for path in below:
        yield from _files(path, (*above, place))


def _stamp(path: str, found: os.stat_result) -> str:
    return f"{path}\0{found.st_size}:{found.st_mtime_ns}:{found.st_ctime_ns}:{found.st_ino}\n"


def _tree(root: str) -> str:
    """Return a digest of a file, or of all below a folder: stamps, and the bytes of what is no data."""
    if is_remote(root):
        raise _Untold
    root = local_path(root)
    state = xxhash.xxh3_128()
    for path in _files(root) if os.path.isdir(root) else (root,):
        state.update(_stamp(path, os.stat(path)).encode(errors="surrogateescape"))
        if not _is_data(path[len(root) + 1 :]):
            with open(path, "rb") as file:
                state.update(file.read())
    return state.hexdigest()


def _is_data(path: str) -> bool:
    """Return whether a file below the root holds samples: a look goes by its size and time alone."""
    is_record = "/_mm_assets/" in path  # of a table
    return path.partition("/")[0] in _DATA_FOLDERS and path.endswith(_DATA_SUFFIXES) and not is_record
