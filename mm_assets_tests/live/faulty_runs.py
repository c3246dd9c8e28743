"""Commands on a store that spoils requests, beside the same commands on one that does not."""

from __future__ import annotations

import hashlib
import json
import re
import secrets
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa

from mm_assets.formats.lance.table import LanceTable
from mm_assets.storage import storage_options_from_env
from mm_assets_tests.cli.commands import run_process
from mm_assets_tests.live.faulty_proxy import Faults, FaultyProxy, faulty_proxy
from mm_assets_tests.live.s3_server import S3Server
from tools.demo import make_shards

# Files that say when they were made, or name others that have random names: only their names are compared.
_OF_THE_MOMENT = re.compile(
    r"(^|/)(_metadata\.json|proof/.*|report/.*|\.origins/.*)$"
    r"|^ledger/accounts/"
)
_INDEX = "ledger/index/"  # collects what other files say, under names that nobody knows before
# In names of a cache's files, and of proofs, which say when they were made.
_RANDOM = re.compile(r"-[0-9a-f]{12}(?=\.arrow$)|(?<=/)[0-9a-f]{32}(?=\.parquet$)")
_TABLE = re.compile(r"^(.*\.lance)/")


@dataclass(frozen=True)
class Ran:
    """How a command ended: its code, what it said on both streams, requests and faults by kind, seconds."""

    code: int
    out: str
    err: str
    requests: Mapping[str, int]
    faults: Mapping[str, int]
    seconds: float

    @property
    def total(self) -> int:
        return sum(self.requests.values())


Runner = Callable[[Sequence[object], Mapping[str, str]], "subprocess.CompletedProcess[str]"]


def _in_a_process(words: Sequence[object], env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    return run_process(*words, env=env, timeout=600)


@dataclass
class FaultyStore:
    """A store, the proxy before it, and a bucket with raw shards below ``raw/``.

    ``runner`` runs ``mm-assets`` with some words and variables.
    """

    server: S3Server
    proxy: FaultyProxy
    bucket: str
    folder: Path  # for homes of Dagster
    runner: Runner = _in_a_process

    @property
    def through_proxy(self) -> S3Server:
        return replace(self.server, endpoint=self.proxy.endpoint)

    @property
    def raw(self) -> str:
        return f"s3://{self.bucket}/raw"

    @cached_property
    def _objects(self) -> Any:
        return self.server.filesystem()

    def new_place(self) -> str:
        """A URL where nothing is yet; its last folder, which some outputs name, is always called alike."""
        return f"s3://{self.bucket}/{secrets.token_hex(6)}/out"

    def run(self, *command: object, faults: Faults | None = None, **settings: str) -> Ran:
        """Run ``mm-assets`` with these faults."""
        self.proxy.reset(faults)
        return self.run_as_it_is(*command, **settings)

    def run_as_it_is(self, *command: object, **settings: str) -> Ran:
        """Run ``mm-assets`` with whatever the proxy is set to do."""
        started = time.monotonic()
        done = self.runner(command, {**self.through_proxy.env, **settings})
        return Ran(
            done.returncode,
            done.stdout,
            done.stderr,
            dict(self.proxy.requests),
            dict(self.proxy.happened),
            time.monotonic() - started,
        )

    def run_graph(self, storage: str, faults: Faults | None = None, **settings: str) -> Ran:
        """Run the whole graph from `raw` into a storage root, with a Dagster home of that root's."""
        return self.run("run", faults=faults, **self.graph_settings(storage), **settings)

    def graph_settings(self, storage: str) -> dict[str, str]:
        """What a graph with this storage root is configured by."""
        home = self.folder / storage.split("/")[-2]
        home.mkdir(exist_ok=True)
        return {
            "MM_RAW_SHARDS": f"{self.raw}/",
            "MM_STORAGE": storage,
            "DAGSTER_HOME": str(home),
            "MM_MIN_ASPECT_RATIO": "1.0",
            "MM_MAX_ASPECT_RATIO": "2.0",
        }

    def unfinished_uploads(self) -> list[str]:
        """Uploads in parts that were begun, and neither completed nor given up."""
        listed = self._objects.call_s3("list_multipart_uploads", Bucket=self.bucket)
        return [upload["Key"] for upload in listed.get("Uploads", [])]

    def contents(self, place: str) -> dict[str, str]:
        """What readers find below a URL: digests of files by name, and of the rows of Lance tables."""
        root = place.removeprefix("s3://")
        found: dict[str, str] = {}
        for path in self._objects.find(root):
            name = path.removeprefix(f"{root}/")
            if name.startswith(_INDEX):
                continue
            if table := _TABLE.match(name):
                if table[1] not in found:
                    found[table[1]] = self.rows_digest(f"{place}/{table[1]}")
                continue
            digest = "" if _OF_THE_MOMENT.search(name) else self._digest(path)
            found[_RANDOM.sub("", name)] = digest
        return found

    def _digest(self, path: str) -> str:
        return hashlib.sha256(self._objects.cat_file(path)).hexdigest()

    def rows_digest(self, table: str) -> str:
        """A digest of all rows of a Lance table, in any order; of one without a version, that it has none."""
        options = storage_options_from_env(self.server.env)
        if not LanceTable(table, options).exists():
            return "no version"
        rows = lance.dataset(table, storage_options=options).to_table()
        rows = rows.sort_by([(name, "ascending") for name in ("sample_id", "position", "modality")])
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, rows.schema) as writer:
            writer.write_table(rows.combine_chunks())
        return json.dumps({"rows": rows.num_rows, "digest": hashlib.sha256(sink.getvalue()).hexdigest()})


@contextmanager
def faulty_store(
    server: S3Server, folder: Path, members: int = 2, pdf: int = 1, runner: Runner = _in_a_process
) -> Iterator[FaultyStore]:
    """A bucket with tiny raw shards, behind a proxy without faults yet."""
    bucket = server.new_bucket()
    for shard in make_shards(folder / "raw", members=members, pdf=pdf, samples=3):
        server.filesystem().put_file(str(shard), f"{bucket}/raw/{shard.name}")
    with faulty_proxy(server.endpoint) as proxy:
        yield FaultyStore(server, proxy, bucket, folder, runner)
