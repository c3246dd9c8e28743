"""What it takes to erase one sample of many small shards, and whether anything of it is left."""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import random
import re
import resource
import shutil
import subprocess
import sys
import tarfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from benchmarks.measuring import ROOT
from benchmarks.results import Results
from benchmarks.workbench import DATA, fresh_output
from mm_assets_tests.live.s3_server import S3Server, s3_server

_SAMPLES = 3
_SETTINGS = {"MM_MIN_ASPECT_RATIO": "1", "MM_MAX_ASPECT_RATIO": "2", "MM_WORKERS": "2", "MM_MAX_LOSS": "1"}


def add_to(commands: Any) -> None:
    """Declare the benchmark and its options."""
    parser = commands.add_parser("erase", help="one sample of many shards, erased with a tag that holds it")
    parser.add_argument("--shards", type=int, default=1000)
    parser.add_argument("--s3", action="store_true", help="raw shards and outputs in buckets of an S3 server")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the graph, tag it, erase a sample, and look for it in every file by means of this module alone."""
    name = f"erase-{options.shards}{'-s3' if options.s3 else ''}"
    results = Results(name, "One sample erased")
    raw = _shards(options.shards)
    victim = raw / f"shard-{options.shards // 2:05d}.tar"
    wanted = _Wanted.of(victim)
    with ExitStack() as stack:
        output = stack.enter_context(fresh_output())
        home = output.with_name("home")
        home.mkdir()
        place = _Buckets(output, stack.enter_context(s3_server())) if options.s3 else _Folders(output)
        for shard in sorted(raw.iterdir()):
            place.put(shard)
        settings = {**_SETTINGS, **place.settings, "DAGSTER_HOME": str(home), "PYTHONPATH": str(ROOT)}
        made = _command(settings, "run")
        tagged = _command(settings, "tag", "v1")
        _command(settings, "report")
        with place.looked_at() as (storage, copied):
            before, held = _digests(storage), wanted.files([storage, home])
        erased = _command(settings, "erase", "--sample-id", wanted.sample_id, "--raw", "--drop-tags")
        with place.looked_at() as (storage, copied):
            after, left = _digests(storage), wanted.files([storage, home, copied])
        proven, again = _command(settings, "prove"), _command(settings, "run")
        place.put(victim)  # somebody brings the raw shard back
        refused = _command(settings, "run", "--changed")
        with place.looked_at() as (storage, _):
            back = wanted.files([storage, home])
        files = len(after)
    changed = [path for path in before.keys() | after.keys() if before.get(path) != after.get(path)]
    # The first name in a path: files of a cache are called so, too.
    shards = sorted({found[0] for path in changed if (found := re.search(r"shard-\d{5}", path))})
    where = ", on an S3 server on the same cores" if options.s3 else ""
    results.say(
        f"{options.shards} small shards of {_SAMPLES} samples through the whole graph on SQLite, tagged, "
        f"with a report{where}. One sample is erased by its id, from its raw shard and the tag, too."
    )
    commands = {
        "the whole graph": made,
        "tag": tagged,
        "erase": erased,
        "prove": proven,
        "run, with nothing to do": again,
        "run, the raw shard as it was": refused,
    }
    rows = [(name, *command.cells) for name, command in commands.items()]
    results.table(("command", "wall s", "CPU s", "exit code"), rows)
    results.table(
        ("what", "number"),
        [
            ("files of the storage", str(files)),
            ("shards with a file that is another", f"{len(shards)} ({', '.join(shards[:3])})"),
            ("files with it before", str(sum(held.values()))),
            ("files with it after", f"{sum(left.values())} {' '.join(sorted(left))}"),
            ("files with it after the raw shard was back", f"{sum(back.values())} {' '.join(sorted(back))}"),
        ],
    )
    results.keep({"commands": rows, "before": held, "after": left})
    results.publish()
    return 0


class _Folders:
    """Folders of raw shards and of outputs."""

    def __init__(self, output: Path) -> None:
        self._storage, self._raw = output, output.with_name("raw")
        self._raw.mkdir()
        self.settings = {"MM_RAW_SHARDS": str(self._raw), "MM_STORAGE": str(self._storage)}

    def put(self, shard: Path) -> None:
        shutil.copyfile(shard, self._raw / shard.name)

    @contextmanager
    def looked_at(self) -> Iterator[tuple[Path, Path]]:
        """The outputs and the raw shards as they are."""
        yield self._storage, self._raw


class _Buckets:
    """Buckets of raw shards and of outputs on an S3 server."""

    def __init__(self, output: Path, server: S3Server) -> None:
        self._output = output
        self._store = server.filesystem()
        self._storage, self._raw = server.new_bucket(), server.new_bucket()
        self.settings = {"MM_RAW_SHARDS": f"s3://{self._raw}/", "MM_STORAGE": f"s3://{self._storage}"}
        self.settings |= server.env

    def put(self, shard: Path) -> None:
        self._store.put_file(str(shard), f"{self._raw}/{shard.name}")

    @contextmanager
    def looked_at(self) -> Iterator[tuple[Path, Path]]:
        """Copies of all objects, with the outputs and with the raw shards."""
        copies = self._output.with_name("storage"), self._output.with_name("raw")
        for bucket, copy in zip((self._storage, self._raw), copies, strict=True):
            for name in self._store.find(bucket):
                file = copy / name.removeprefix(f"{bucket}/")
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(self._store.cat_file(name))
        yield copies
        for copy in copies:
            shutil.rmtree(copy)


class _Command:
    """A command that has ended: wall and CPU seconds and exit code, and the lines that it printed."""

    def __init__(self, wall: float, cpu: float, done: subprocess.CompletedProcess[str]) -> None:
        self.cells = f"{wall:.1f}", f"{cpu:.1f}", str(done.returncode)
        self.told = (done.stdout + done.stderr).splitlines()


def _cpu_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _command(settings: Mapping[str, str], *arguments: str) -> _Command:
    started, before = time.monotonic(), _cpu_of_children()
    done = subprocess.run(
        [sys.executable, "-m", "mm_assets.cli", *arguments],
        env={**os.environ, **settings},
        cwd=settings["DAGSTER_HOME"],
        capture_output=True,
        text=True,
        check=False,
    )
    found = _Command(time.monotonic() - started, _cpu_of_children() - before, done)
    print(f"{' '.join(arguments)}: {found.cells}", flush=True)
    print("\n".join(found.told[-8:]), flush=True)
    return found


class _Wanted:
    """What is looked for: parts of the images and texts of a sample, its URL and its id."""

    def __init__(self, sample_id: str, needles: Sequence[bytes]) -> None:
        self.sample_id = sample_id
        self._pattern = re.compile(b"|".join(map(re.escape, needles)))

    @classmethod
    def of(cls, shard: Path) -> _Wanted:
        with tarfile.open(shard) as tar:
            name = [name for name in tar.getnames() if name.endswith(".json")][
                1
            ]  # the first has a damaged picture
            sample_id = name.removesuffix(".json")
            members = [(m.name, tar.extractfile(m).read()) for m in tar if m.name.startswith(sample_id)]  # type: ignore[union-attr]
        document = json.loads(dict(members)[name])
        needles = [sample_id.encode(), document["url"].encode()]
        needles += [text.encode() for text in document["texts"] if text]
        for name, data in members:
            if not name.endswith(".json"):
                # What comes first in a JPEG are tables, which all have.
                needles += [data[at : at + 64] for at in (len(data) // 2, len(data) * 2 // 3, len(data) - 80)]
        return cls(sample_id, needles)

    def files(self, roots: Sequence[Path]) -> Counter[str]:
        """The number of files with any of it, by their folder: of all bytes, and of what Parquet unpacks."""
        found: Counter[str] = Counter()
        for root in roots:
            for path in sorted(root.rglob("*")):
                if path.is_file() and any(map(self._pattern.search, _contents(path))):
                    found["/".join(path.relative_to(root.parent).parts[:2])] += 1
        return found


def _contents(path: Path) -> list[bytes]:
    data = path.read_bytes()
    if path.suffix != ".parquet":
        return [data]
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pq.read_table(pa.BufferReader(data))
    return [data, repr(table.schema.metadata).encode(), *(_unpacked(column) for column in table.columns)]


def _unpacked(column: Any) -> bytes:
    return b"\0".join(
        buffer.to_pybytes() for chunk in column.chunks for buffer in chunk.buffers() if buffer is not None
    )


def _digests(root: Path) -> dict[str, str]:
    """The digest of each file that belongs to one shard, but for those that say when something was made."""
    return {
        str(path.relative_to(root)): hashlib.blake2b(path.read_bytes()).hexdigest()
        for path in root.rglob("*")
        if path.is_file() and not path.is_relative_to(root / "proof")
    }


def _shards(count: int) -> Path:
    """Small shards with pictures that the filters keep and drop, and in every tenth one that is damaged."""
    folder = DATA / f"erase-{count}x{_SAMPLES}"
    if folder.exists():
        return folder
    from PIL import Image

    made = folder.with_suffix(".unfinished")
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir(parents=True)
    for shard in range(count):
        with tarfile.open(made / f"shard-{shard:05d}.tar", "w") as tar:
            for number in range(_SAMPLES):
                rng = random.Random(f"{shard} {number}")
                key = f"{rng.getrandbits(96):024x}"
                images, files = [], []
                for position, size in enumerate(((64, 48), (40, 80), (50, 50)), start=1):
                    picture = io.BytesIO()
                    Image.frombytes("RGB", size, rng.randbytes(3 * size[0] * size[1])).save(picture, "JPEG")
                    data = picture.getvalue()
                    images.append(f"{key}.{position}.jpg")
                    is_bad = shard % 10 == 0 and number == 0 and position == 3
                    files.append((images[-1], data[: len(data) // 2] if is_bad else data))
                texts = [" ".join(f"word{rng.getrandbits(30)}" for _ in range(20))]
                document = {
                    "url": f"https://example.org/{key[:2]}/{key}/page",
                    "texts": [*texts, None, None, None],
                    "images": [None, *images],
                }
                for name, data in ((f"{key}.json", json.dumps(document).encode()), *files):
                    info = tarfile.TarInfo(name)
                    info.size = len(data)
                    tar.addfile(info, io.BytesIO(data))
    made.rename(folder)
    return folder
