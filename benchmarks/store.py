"""Conversion on an S3 store, beside clients that only get and put the same bytes, and beside the peer."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import curator
from benchmarks.mainjob import small_files
from benchmarks.measuring import ROOT, Measurement, measure, measure_command
from benchmarks.results import Results, spread
from benchmarks.routes import MAX_ASPECT_RATIO, MIN_ASPECT_RATIO, PER_IMAGE_FIELDS
from benchmarks.shards import Shape, make_shards
from benchmarks.store_clients import AT_ONCE, CLIENTS, PART
from benchmarks.workbench import DATA
from mm_assets_tests.live.faulty_proxy import Pace, faulty_proxy
from mm_assets_tests.live.s3_server import S3Server, s3_server

_OURS, _PEER = "mm_assets convert", "NeMo Curator, writing to the local disk"
_BOUNDS = ("--min-aspect-ratio", str(MIN_ASPECT_RATIO), "--max-aspect-ratio", str(MAX_ASPECT_RATIO))
_FIELDS = ("--per-image-fields", ",".join(PER_IMAGE_FIELDS))
_GOAL = 0.8
_SMALL_SHARDS = 20
_BOOKKEEPING = {"first run": ["run"], "nothing to do": ["run"], "prove": ["prove"], "tag": ["tag", "v1"]}
_FAR = Pace(latency=0.02, bytes_per_second=5e6)


def add_to(commands: Any) -> None:
    """Declare the benchmark and its options."""
    parser = commands.add_parser("store", help="conversion on an S3 store, beside its own speed (5 minutes)")
    parser.add_argument("--shards", type=int, default=8)
    parser.add_argument("--samples", type=int, default=512, help="in all shards, of 1.45 MB each")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--far", action="store_true", help="each connection has 5 MB/s, each request takes 20 ms more"
    )
    parser.add_argument("--without-peer", action="store_true", help="which takes minutes a round")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Put shards into a store, and measure everything on them in turns."""
    name = f"store{'-far' if options.far else ''}-{options.shards}x{options.samples}"
    results = Results(name, "Conversion on an S3 store")
    shards = make_shards(DATA, Shape("members", options.shards, options.samples))
    runs: dict[str, list[Measurement]] = defaultdict(list)
    cores = sorted(os.sched_getaffinity(0))
    apart = len(cores) // 2  # the server's own, if there are two or more
    with ExitStack() as stack:
        os.sched_setaffinity(0, cores[:apart] or cores)
        near = stack.enter_context(s3_server())
        proxy = stack.enter_context(faulty_proxy(near.endpoint))
        os.sched_setaffinity(0, cores[apart:])  # of what is started from now on
        server = replace(near, endpoint=proxy.endpoint) if options.far else near
        bucket = server.new_bucket()
        for shard in shards:
            server.filesystem().put_file(str(shard), f"{bucket}/raw/{shard.name}")
        keys = [f"raw/{shard.name}" for shard in shards]
        requests, written = _counted(server, bucket, keys)
        bookkeeping = _bookkeeping(server)
        if options.far:
            proxy.pace = _FAR
        for number in range(options.rounds):
            _round(server, bucket, keys, written, number, runs)
            if number == 0 and not options.without_peer:
                runs[_PEER].append(_peer(server, bucket, keys))
    read = sum(shard.stat().st_size for shard in shards)
    if options.far:
        results.say(
            f"Through a proxy: {_FAR.latency * 1000:.0f} ms more for each request, and "
            f"{_FAR.bytes_per_second / 1e6:.0f} MB/s for each connection."
        )
    _report(results, runs, read, written, options.rounds)
    _report_requests(results, requests, read / len(shards))
    _report_bookkeeping(results, bookkeeping)
    results.publish()
    return 0


def _round(
    server: S3Server,
    bucket: str,
    keys: Sequence[str],
    written: int,
    number: int,
    runs: dict[str, list[Measurement]],
) -> None:
    programs = [*CLIENTS, _OURS]
    for program in programs if number % 2 == 0 else reversed(programs):
        os.sync()
        if program == _OURS:
            runs[program].append(measure_command(_convert(bucket, f"out-{number}"), server.env))
        else:
            runs[program].append(_raw_copy(server, bucket, keys, program, written))
        print(f"round {number + 1}: {program}: {runs[program][-1].wall:.2f} s", flush=True)


def _convert(bucket: str, output: str) -> list[str]:
    source, target = f"s3://{bucket}/raw/", f"s3://{bucket}/{output}"
    command = [sys.executable, "-m", "mm_assets.cli", "convert", source, target, "--to", "parquet"]
    return [*command, *_BOUNDS, *_FIELDS]


def _raw_copy(server: S3Server, bucket: str, keys: Sequence[str], client: str, nbytes: int) -> Measurement:
    with tempfile.TemporaryDirectory(prefix="mm-assets-copy-") as folder:
        return measure(
            "benchmarks.store_clients:prepare",
            python=curator.PYTHON if client == "obstore" else None,
            environment=server.env,
            client=client,
            keys=list(keys),
            bucket=bucket,
            folder=folder,
            nbytes=nbytes,
        )


def _peer(server: S3Server, bucket: str, keys: Sequence[str]) -> Measurement:
    with (
        tempfile.TemporaryDirectory(prefix="mm-assets-peer-") as folder,
        tempfile.TemporaryDirectory(prefix="ray-") as scratch,
    ):
        files = [f"s3://{bucket}/{key}" for key in keys]
        output = str(Path(folder, "output"))
        command = [
            str(curator.PYTHON),
            "-m",
            "benchmarks.curator",
            "ray",
            "webdataset,parquet",
            output,
            *files,
        ]
        return measure_command(command, {**server.env, "RAY_TMPDIR": scratch, "PYTHONPATH": str(ROOT)})


def _counted(server: S3Server, bucket: str, keys: Sequence[str]) -> tuple[Mapping[str, int], int]:
    """Convert once through a proxy that counts requests; return them by kind, and the bytes written."""
    with faulty_proxy(server.endpoint) as proxy:
        environment = {**server.env, "AWS_ENDPOINT_URL": proxy.endpoint}
        measure_command(_convert(bucket, "counted"), environment)
        requests = Counter(proxy.requests)
    store = server.filesystem()
    files = store.find(f"{bucket}/counted", detail=True)
    return requests, sum(info["size"] for name, info in files.items() if name.endswith(".parquet"))


def _bookkeeping(server: S3Server) -> dict[str, Mapping[str, int]]:
    """Return the requests of commands over small shards, by kind: what they ask beside the data."""
    bucket = server.new_bucket()
    found: dict[str, Mapping[str, int]] = {}
    for shard in small_files(_SMALL_SHARDS)[:_SMALL_SHARDS]:
        server.filesystem().put_file(str(shard), f"{bucket}/raw/{shard.name}")
    with faulty_proxy(server.endpoint) as proxy, tempfile.TemporaryDirectory() as home:
        places = {"MM_RAW_SHARDS": f"s3://{bucket}/raw/*.tar", "MM_STORAGE": f"s3://{bucket}/storage"}
        environment = {**server.env, **places, "AWS_ENDPOINT_URL": proxy.endpoint, "DAGSTER_HOME": home}
        for name, arguments in _BOOKKEEPING.items():
            proxy.reset()
            command = [sys.executable, "-m", "mm_assets.cli", *arguments]
            measure_command(command, {**environment, "PYTHONPATH": str(ROOT)})
            found[name] = Counter(proxy.requests)
    return found


def _report(
    results: Results, runs: Mapping[str, Sequence[Measurement]], read: int, written: int, rounds: int
) -> None:
    results.say(
        "SeaweedFS on the same machine; on two cores or more half of them are its own. "
        f"{read / 1e6:,.0f} MB are read and {written / 1e6:,.0f} MB written, {rounds} rounds in turns. "
        f"The clients get each object in parts of {PART >> 20} MiB, {AT_ONCE} at once, into a file, and put "
        "as many bytes as the conversion writes; two objects at a time. They are measured without their "
        "imports, the commands with start-up and all processes; peak is that of the largest process. The "
        "peer ran once."
    )
    best = min(median(run.wall for run in runs[client]) for client in CLIENTS)
    rows = []
    for program, found in runs.items():
        wall = [run.wall for run in found]
        share = "" if program in CLIENTS else f"{best / median(wall):.2f}"
        rate = f"{(read + written) / median(wall) / 1e6:.0f}"
        cpu = spread([run.cpu for run in found])
        rows.append((program, spread(wall), cpu, rate, f"{max(run.peak for run in found):.0f}", share))
    header = (
        "program",
        "wall s",
        "CPU s",
        "MB/s, both ways",
        "largest process, MiB",
        "of the fastest client",
    )
    results.table(header, rows)
    results.say(f"Goal: {_GOAL} of the store's own speed, at most 256 MiB a worker above its start.")
    results.keep({name: [vars(run) for run in found] for name, found in runs.items()})


def _report_requests(results: Results, requests: Mapping[str, int], mean: float) -> None:
    results.say(f"Requests of one conversion, shards of {mean / 1e6:.0f} MB: {json.dumps(dict(requests))}")


def _report_bookkeeping(results: Results, found: Mapping[str, Mapping[str, int]]) -> None:
    results.say(f"Requests of commands over {_SMALL_SHARDS} shards of two samples, all outputs:")
    kinds = list(dict.fromkeys(kind for requests in found.values() for kind in sorted(requests)))
    rows = [
        [name, str(sum(requests.values())), *(str(requests.get(kind, 0)) for kind in kinds)]
        for name, requests in found.items()
    ]
    results.table(["command", "all", *kinds], rows)
