"""Raw shards, a storage and a Dagster home from which samples are erased."""

from __future__ import annotations

import hashlib
import io
import json
import random
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from PIL import Image

from mm_assets.accounting.erasures import ErasureStore
from mm_assets_tests.cli import commands
from mm_assets_tests.formats.brute_force import files_with, versions_with
from mm_assets_tests.formats.raw_tars import make_tar
from mm_assets_tests.headless.conftest import Project

SETTINGS = {"MM_WORKERS": "1", "MM_MIN_ASPECT_RATIO": "1", "MM_MAX_ASPECT_RATIO": "2", "MM_MAX_LOSS": "1"}


def image_of(seed: str, width: int = 60) -> bytes:
    file = io.BytesIO()
    Image.frombytes("RGB", (width, 48), random.Random(seed).randbytes(3 * width * 48)).save(file, "PNG")
    return file.getvalue()


def text_of(sample: str) -> str:
    return " ".join(f"word{random.Random(f'{sample} {number}').getrandbits(40)}" for number in range(12))


def url_of(sample: str) -> str:
    return f"https://example.org/pages/{hashlib.md5(sample.encode()).hexdigest()}.html"


SHARED = image_of("shared")


def _members_of_one(sample: str) -> dict[str, bytes]:
    """A document of a text and three pictures: kept, dropped, shared with all others; of `BAD` one is cut."""
    images = {
        f"{sample}.0.png": image_of(f"{sample} kept"),
        f"{sample}.1.png": image_of(f"{sample} dropped", width=20),
        f"{sample}.2.png": SHARED,
    }
    if sample == BAD:
        images[f"{sample}.1.png"] = images[f"{sample}.1.png"][:2000]
    document = {
        "texts": [text_of(sample), None, None, None],
        "images": [None, *images],
        "url": url_of(sample),
    }
    return {f"{sample}.json": json.dumps(document).encode(), **images}


def members_of(*samples: str) -> dict[str, bytes]:
    """Members of a tar of these documents."""
    return {name: data for sample in samples for name, data in _members_of_one(sample).items()}


class World(Project):
    """Its settings, and what is looked at; the folder is the same for each test of a module."""

    @property
    def settings(self) -> dict[str, str]:
        return {**super().settings, **SETTINGS}

    def ok(self, *arguments: str, **settings: str) -> str:
        done = self.command(*arguments, **settings)
        assert done.returncode == 0, done
        return done.stdout

    def refused(self, *arguments: str, **settings: str) -> str:
        """The line of a command that fails and changes nothing in raw shards or storage."""
        before = self.files(self.raw, self.storage)
        line = commands.only_line(self.command(*arguments, **settings))
        assert self.files(self.raw, self.storage) == before
        return line

    def files(self, *folders: Path) -> dict[str, bytes]:
        return {
            str(path.relative_to(self.folder)): path.read_bytes()
            for folder in folders
            for path in sorted(folder.rglob("*"))
            if path.is_file()
        }

    def with_any(self, needles: Sequence[bytes], *folders: Path) -> list[str]:
        """The files, and versions of the table, that have any of them."""
        return [
            *(name for folder in folders for name in files_with(folder, needles)),
            *versions_with(self.table, needles),
        ]

    @property
    def table(self) -> str:
        return str(self.storage / "lance" / "items.lance")

    def samples(self, output: str = "curated") -> set[str]:
        return {
            sample
            for path in (self.storage / output).glob("*.parquet")
            for sample in pq.read_table(path, columns=["sample_id"])["sample_id"].to_pylist()
        }

    def certificate(self) -> Mapping[str, object]:
        *_, last = ErasureStore(str(self.storage)).all()
        return vars(last)


def needles_of(sample: str) -> list[bytes]:
    """What nobody else has: its id, its URL, words of its text, pieces of its pictures."""
    pictures = [data for name, data in members_of(sample).items() if name.endswith(".png") and data != SHARED]
    pieces = [data[at : at + 48] for data in pictures for at in (300, 1100, 1800)]
    return [sample.encode(), url_of(sample).encode(), text_of(sample)[:40].encode(), *pieces]


A1, A2, B1, B2, C1, BAD = (f"sample-{name}-{hashlib.md5(name.encode()).hexdigest()[:8]}" for name in "abcdef")


def small_world(folder: Path, **members: Mapping[str, bytes]) -> World:
    """Raw tars of these members, through the graph."""
    world = World(folder)
    world.home.mkdir()
    for name, of in members.items():
        make_tar(world.raw / f"{name}.tar", of.items())
    world.ok("run")
    return world


def files_of_shard(world: World, name: str) -> dict[str, bytes]:
    """The data of a shard, without what says when it was made."""
    found = world.files(
        *(world.storage / output for output in ("curated", "filtered", "webdataset", "scores"))
    )
    return {path: data for path, data in found.items() if Path(path).name.startswith(f"{name}.")}


@pytest.fixture(scope="module")
def erased_template(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Three shards through the graph, a tag and a report; each shard has quarantine and dropped pictures."""
    world = World(tmp_path_factory.mktemp("erase") / "world")
    world.home.mkdir(parents=True)
    make_tar(world.raw / "a.tar", members_of(A1, BAD, A2).items())
    make_tar(world.raw / "b.tar.gz", members_of(B1, B2).items(), mode="w:gz")
    make_tar(world.raw / "c.tar", members_of(C1).items())
    made = world.command("run")
    assert world.samples() == {A1, A2, B1, B2, C1}, made
    world.ok("tag", "v1")
    world.ok("report")
    shutil.copytree(world.folder, world.folder.with_name("template"))
    return world


@pytest.fixture
def world(erased_template: World) -> Iterator[World]:
    """The same, as it was."""
    shutil.rmtree(erased_template.folder)
    shutil.copytree(erased_template.folder.with_name("template"), erased_template.folder)
    yield erased_template
