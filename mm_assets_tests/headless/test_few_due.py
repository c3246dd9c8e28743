"""`mm-assets run` where few of many shards are due: it makes these, and looks at the others.

``TEST_SEQUENCES=20 pytest …`` tries more sequences of changes than the suite does.
"""

from __future__ import annotations

import os
import random
import re
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from mm_assets.accounting import ShardRecord
from mm_assets.graph.dagster_internals import chunks
from mm_assets.headless import request
from mm_assets.headless import run as headless_run
from mm_assets.headless.request import Look
from mm_assets_tests.cli.commands import fine
from mm_assets_tests.formats.images.pictures import picture
from mm_assets_tests.formats.raw_tars import make_tar
from mm_assets_tests.graph.output_digests import digests
from mm_assets_tests.headless.conftest import ASSETS, Project
from mm_assets_tests.quick_instance import quick_instance

SHARDS = "abcdef"
_DATES = 1.6e9  # of raw shards
SEQUENCES = int(os.environ.get("TEST_SEQUENCES", "1"))
PROVEN = "proven: every item of {} shards is in 5 outputs as it was written (proof/proof.json)"


@pytest.fixture(autouse=True)
def runs_of_two_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request, "chunks", partial(chunks, size=2))


def counts(told: str) -> dict[str, list[str]]:
    """Partitions and unchanged ones of each asset, by the table of a run."""
    return {line.split()[0]: line.split()[1:3] for line in told.splitlines() if line.split()[0] in ASSETS}


def test_a_new_shard_is_one_run(project: Project) -> None:
    project.shards(SHARDS)
    fine(project.run())
    project.shard("g")
    before = project.runs()
    told = fine(project.run())
    assert project.runs() == before + 1
    assert project.made() == {asset: ["g"] for asset in ASSETS}
    assert "first what is due: 1 shard; then a look at the others\n" in told
    assert counts(told) == {asset: ["7", "6"] for asset in ASSETS}
    assert PROVEN.format(7) in told
    assert fine(project.run()).startswith("nothing to do: 7 shards")
    assert project.runs() == before + 1


def test_what_somebody_has_removed_is_one_run(project: Project) -> None:
    project.shards(SHARDS)
    fine(project.run())
    for path in ("filtered/c.parquet", "webdataset/e.tar"):
        (project.storage / path).unlink()
        before = project.runs()
        told = fine(project.run())
        assert project.runs() == before + 1
        assert (project.storage / path).exists() and PROVEN.format(6) in told
    # The look stops at the first asset in which something is missing.
    (project.storage / "curated" / "a.parquet").unlink()
    (project.storage / "webdataset" / "f.tar").unlink()
    assert PROVEN.format(6) in fine(project.run())
    assert (project.storage / "webdataset" / "f.tar").exists()


def test_many_shards_are_made_with_all_others(project: Project) -> None:
    project.shards(SHARDS)
    fine(project.run())
    for name in "ace":
        project.shard(name, "another text")
    told = fine(project.run())
    assert "first what is due" not in told
    assert counts(told)["curated_parquet"] == ["6", "3"]


def test_where_a_shard_fails_all_are_taken(project: Project) -> None:
    """It may have claimed what others could take over. The table counts each shard once."""
    project.shards("abcde")
    project.broken("f")
    assert project.run().returncode == 1
    for name in "gh":
        project.shard(name)
        done = project.run()
        assert (done.returncode, done.stderr) == (1, "")
        assert "first what is due" not in done.stdout
    project.shard("f")
    assert PROVEN.format(8) in fine(project.run())
    project.broken("a")
    before = project.runs()
    done = project.run()
    assert done.returncode == 1 and "first what is due: 1 shard;" in done.stdout
    assert project.runs() == before + 1 + 4
    assert counts(done.stdout)["final_tars"] == ["7", "7"]
    assert done.stdout.count("shard 'a' of curated_parquet: ") == 1


def test_a_shard_that_is_gone_is_told_of_by_runs_of_all(project: Project) -> None:
    project.shards(SHARDS)
    fine(project.run())
    (project.raw / "b.tar").unlink()
    project.shard("g")
    before = project.runs()
    done = project.run()
    assert "1 raw shard is gone" in done.stderr and "first what is due" not in done.stdout
    assert project.runs() > before + 1


def test_others_that_lost_more_than_is_allowed_now(project: Project) -> None:
    project.shards("bcdef")
    document, png = {"texts": ["x", None], "images": [None, "s.png"]}, picture(0)[1]
    cut = ("s.png", png[: len(png) // 2])
    make_tar(project.raw / "a.tar", [("s.json", document), cut, ("t.json", {"texts": ["y"]})])
    assert project.run(MM_MAX_LOSS="0.9").returncode == 0
    project.shard("g")
    done = project.run(MM_MAX_LOSS="0.1")
    assert done.returncode == 1
    assert "lost more than MM_MAX_LOSS allows, 10%: a " in done.stdout


def written(project: Project) -> dict[str, str]:
    """The digests of what was written; the files of a cache that replaces another have names of chance."""
    return {
        re.sub(r"-\w+\.arrow$", ".arrow", path): digest
        for path, digest in digests(project.storage).items()
        if not (path.startswith("arrow_cache/") and path.endswith("/_metadata.json"))
    }


class _Changes:
    """Random changes of raw shards and outputs; the same for the same seed."""

    def __init__(self, project: Project, seed: int) -> None:
        self._project, self._random = project, random.Random(seed)

    def _write(self, name: str) -> None:
        """A shard with samples that others may have, too, and a column that may be wider."""
        draw = self._random
        documents = [(f"{name}{number}.json", {"texts": [f"{draw.random()}"]}) for number in range(2)]
        if draw.random() < 0.5:
            documents.append(
                (f"shared{draw.randrange(2)}.json", {"texts": ["x"], "n": draw.choice([1, 1.5])})
            )
        if draw.random() < 0.2:
            documents.append(("bad.json", {"texts": 5}))
        make_tar(self._project.raw / f"{name}.tar", documents)

    def date(self, number: int) -> None:
        """Give shards that were written just now a time, of which surveys tell."""
        for path in self._project.raw.glob("*.tar"):
            if path.stat().st_mtime > _DATES + 1e6:
                os.utime(path, (_DATES + number, _DATES + number))

    def first(self) -> None:
        for name in SHARDS:
            self._write(name)

    def one(self) -> None:
        draw = self._random
        names = sorted(path.stem for path in self._project.raw.glob("*.tar"))
        kind = draw.choice(["new", "changed", "changed", "removed", "damaged", "back"])
        if kind == "new":
            self._write(chr(ord("a") + len(names)))
        elif kind == "changed":
            self._write(draw.choice(names))
        elif kind == "damaged":
            self._project.broken(draw.choice(names))
        elif kind == "back":
            for name in names:
                if (self._project.raw / f"{name}.tar").read_bytes().startswith(b"no tar"):
                    self._write(name)
        else:
            name = draw.choice(names)
            for folder, suffix in (("filtered", "parquet"), ("webdataset", "tar"), ("scores", "parquet")):
                if draw.random() < 0.5:
                    (self._project.storage / folder / f"{name}.{suffix}").unlink(missing_ok=True)


LOSSY = ("lossy.json", {"texts": [None] * 20, "images": [f"{number}.png" for number in range(20)]})


class Twins:
    """Two projects with the same raw shards: one makes few due shards first, the other takes always all."""

    def __init__(self, project: Project, twin: Project) -> None:
        self.project, self.twin = project, twin
        self.few = 0
        self._dates = 0

    def write(self, name: str, *documents: tuple[str, object]) -> None:
        for each in (self.project, self.twin):
            path = make_tar(each.raw / f"{name}.tar", list(documents))
            os.utime(path, (_DATES + self._dates, _DATES + self._dates))
        self._dates += 1

    def run(self, **settings: str) -> None:
        """Run both; exit code, table, losses and all that is written are the same."""
        done = self.project.run(**settings)
        with pytest.MonkeyPatch.context() as changed:
            changed.setattr(headless_run, "look_at_all", lambda *_, **__: Look())
            changed.setattr(headless_run, "_instance", lambda: nullcontext(self.twin.memory))
            expected = self.twin.run(**settings)
        self.few += "first what is due" in done.stdout
        assert done.returncode == expected.returncode
        for asset, (partitions, _) in counts(expected.stdout).items():
            assert counts(done.stdout)[asset][0] == partitions, asset
        lost = re.compile(r"items lost.*?;")
        assert lost.findall(done.stdout) == lost.findall(expected.stdout)
        assert written(self.project) == written(self.twin)


@pytest.fixture
def twins(project: Project, tmp_path: Path) -> Twins:
    home = tmp_path / "twin" / "home"
    home.mkdir(parents=True)
    return Twins(project, Project(tmp_path / "twin", quick_instance(home)))


def text(name: str, **fields: object) -> tuple[str, object]:
    return f"{name}.json", {"texts": [f"text of {name}"], **fields}


def test_a_shard_that_gives_up_a_sample_and_fails_again(twins: Twins) -> None:
    for name in "bcdef":
        twins.write(name, text(f"{name}0"))
    twins.write("g", text("g0"), text("shared"))
    twins.write("a", text("shared"), LOSSY)
    twins.run()
    twins.write("a", text("other"), LOSSY)
    twins.run()
    rows = pq.read_table(twins.project.storage / "curated" / "g.parquet")["sample_id"].to_pylist()
    assert {*rows} == {"g0", "shared"}


def test_a_changed_shard_widens_a_column_and_gives_up_a_sample(twins: Twins) -> None:
    """Nobody else is due; a run of all follows that of the few."""
    for name in "abcdef":
        twins.write(name, text(f"{name}0", n=1), *([text("shared", n=1)] if name in "ae" else []))
    twins.run()
    twins.write("a", text("a0", n=1.5))
    twins.run()
    assert twins.few == 1
    rows = pq.read_table(twins.project.storage / "curated" / "e.parquet")
    assert {*rows["sample_id"].to_pylist()} == {"e0", "shared"} and str(
        rows.schema.field("n").type
    ) == "double"


def test_due_shards_with_others_between_them(twins: Twins) -> None:
    """Each shard is counted once, also one between them that fails when it is made again."""
    names = "abcdefg"
    for name in names:
        twins.write(name, text(f"{name}0"), text(f"{name}1"))
    twins.write("b", text("b0"), ("b1.json", {"texts": [None] * 2, "images": ["x.png", "y.png"]}))
    twins.run(MM_MAX_LOSS="0.9")
    for name in "ac":
        twins.write(name, text(f"{name}0"))
    twins.run(MM_MAX_LOSS="0.9")
    assert twins.few == 1
    for each in (twins.project, twins.twin):
        (each.storage / "curated" / "b.parquet").unlink()
    twins.write("a", text("a2"))
    twins.run(MM_MAX_LOSS="0.1")


@pytest.mark.parametrize(
    ("most_samples", "together"),
    [(1, ["a", "b", "c", "d"]), (3, ["ab", "cd"]), (5, ["abc", "d"]), (99, ["abc", "d"])],
)
def test_shards_are_planned_together_by_number_and_samples(
    most_samples: int, together: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request, "_MOST_TOGETHER", 3)
    monkeypatch.setattr(request, "_MOST_SAMPLES", most_samples)
    records = {
        key: ShardRecord(
            "curated_parquet",
            key,
            "",
            "",
            "",
            account={"written": {"samples": samples}, "lost": {"rows": lost}},
        )
        for key, samples, lost in [("a", 2, 0), ("b", 0, 1), ("c", 1, 0), ("d", 0, 9)]
    }
    assert list(request._together(records, records)) == [list(keys) for keys in together]


@pytest.mark.parametrize("together", [1, len(SHARDS)])
@pytest.mark.parametrize("seed", range(SEQUENCES))
def test_all_is_as_runs_of_all_make_it(
    twins: Twins, seed: int, together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many shards a look plans together."""
    monkeypatch.setattr(request, "_MOST_TOGETHER", together)
    changes = [_Changes(each, seed) for each in (twins.project, twins.twin)]
    for number in range(6):
        for change in changes:
            change.one() if number else change.first()
            change.date(number)
        twins.run(MM_MAX_LOSS="0.7")
    assert twins.few
