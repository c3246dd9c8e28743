"""Publishing of real outputs to a folder: whole, in order, once, and proven."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import lance
import pyarrow.parquet as pq
import pytest
import xxhash

from mm_assets.accounting.erasures import Entry, Erasure, ErasureStore
from mm_assets.storage.files import is_within
from mm_assets.storage.small_files import unseal
from mm_assets.versions.publishing import Publication, PublishedRecord
from mm_assets.versions.targets import FolderTarget, LocalFile, PublishError
from mm_assets_tests.cli.commands import run
from mm_assets_tests.graph.deployment import Deployment
from mm_assets_tests.test_extras import COMMAND

ALL = ("filtered", "webdataset", "lance", "arrow_cache")


class Watched(FolderTarget):
    """A folder that notes the order of files, and may fail or do something at one of them."""

    def __init__(self, url: Path) -> None:
        super().__init__(str(url))
        self.order: list[str] = []
        self.fails_at = ""

    def put(self, root: str, files: Sequence[LocalFile]) -> None:
        for file in files:
            if self.fails_at and self.fails_at in file.path:
                raise OSError(f"the line is cut at {file.path}")
            super().put(root, [file])
            self.order.append(file.path)


def publication(
    deployment: Deployment, target: FolderTarget, outputs: Sequence[str] = ALL, deletes: bool = False
) -> Publication:
    return Publication(deployment.storage, target, outputs, lambda _: {}, deletes)


def files(folder: Path | str) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in Path(folder).rglob("*") if p.is_file()}


def test_what_is_published_is_what_is_here(copied: Deployment, tmp_path: Path) -> None:
    done = run("publish", tmp_path / "pub", "--storage", copied.storage, "--outputs", ",".join(ALL))
    assert done.returncode == 0, done.stderr
    there, here = files(tmp_path / "pub"), files(copied.storage)
    cards = {"filtered/README.md", "webdataset/README.md"}
    assert {path.partition("/")[0] for path in there} == set(ALL), "no ledger, no quarantine, no curated rows"
    assert all(there[path] == here[path] for path in there.keys() - cards)
    expected = {path for path in here if path.startswith(("filtered/", "webdataset/", "arrow_cache/"))}
    hidden = re.compile(r"/\.(?!nv-meta/)(?!info\.json)")  # notes of our own, which no client reads
    assert there.keys() >= {path for path in expected if not hidden.search(path)}
    counts = rf"{len(there)} files of \d+ bytes, {len(there)} copied, all equal \(\d+ read back\)"
    assert re.fullmatch(rf"{tmp_path}/pub: {counts}\n", done.stdout)
    verified = run(
        "verify", tmp_path / "pub/filtered", tmp_path / "pub/webdataset", f"{tmp_path}/pub/lance/items.lance"
    )
    assert verified.stdout.splitlines()[-1] == "equal"


def test_without_dagster_all_is_published(copied: Deployment, tmp_path: Path) -> None:
    command = [sys.executable, "-c", COMMAND.replace("'dagster'", "'dagster', 'sqlalchemy'"), "publish"]
    command += [str(tmp_path / "pub"), "--storage", copied.storage, "--outputs", "filtered"]
    environment = {**os.environ, "MM_STORAGE": copied.storage}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "") and "all equal" in done.stdout


def test_cards_have_figures_and_keep_the_features_of_tars(copied: Deployment, tmp_path: Path) -> None:
    assert run("publish", tmp_path / "pub", "--storage", copied.storage).returncode == 0
    stored = Path(copied.storage, "webdataset", "README.md").read_text()
    card = (tmp_path / "pub" / "webdataset" / "README.md").read_text()
    assert card.startswith(stored.rstrip()) and "## Figures" in card and "| final_tars |" in card
    parquet = (tmp_path / "pub" / "filtered" / "README.md").read_text()
    assert '{split: train, path: "*.parquet"}' in parquet and "| filtered_parquet |" in parquet
    assert not (tmp_path / "pub" / "README.md").exists(), "a folder of others may have one of its own"


def test_the_record_tells_what_is_where(copied: Deployment, tmp_path: Path) -> None:
    publication(copied, target := Watched(tmp_path / "pub")).run()
    (path,) = Path(copied.storage, "ledger", "published").iterdir()
    record = unseal(path.read_bytes())
    assert (record["target"], record["state"], record["outputs"]) == (target.url, "proven", list(ALL))
    assert record["proven_at"] >= record["began_at"] > "2020"
    there = files(tmp_path / "pub")
    assert {f["path"]: (f["bytes"], f["digests"]["xxh3_128"]) for f in record["files"]} == {
        path: (len(data), xxhash.xxh3_128_hexdigest(data)) for path, data in there.items()
    }


def test_data_come_before_what_names_them(copied: Deployment, tmp_path: Path) -> None:
    publication(copied, target := Watched(tmp_path / "pub")).run()
    at = {path: number for number, path in enumerate(target.order)}
    tars = [n for path, n in at.items() if path.endswith((".tar", ".tar.idx"))]
    for index in ("webdataset/index.json", "webdataset/.nv-meta/.info.json", "webdataset/README.md"):
        assert at[index] > max(tars)
    data = [n for path, n in at.items() if path.startswith("lance/") and "/_versions/" not in path]
    assert min(n for path, n in at.items() if "/_versions/" in path) > max(data)
    arrows = [n for path, n in at.items() if path.endswith(".arrow") and path.startswith("arrow_cache/")]
    assert min(n for path, n in at.items() if path.endswith("_metadata.json")) > max(arrows)


def test_a_second_call_copies_nothing_and_a_third_what_changed_there(
    copied: Deployment, tmp_path: Path
) -> None:
    first = publication(copied, Watched(tmp_path / "pub")).run()
    assert first.copied == first.files == len(files(tmp_path / "pub"))
    again = publication(copied, target := Watched(tmp_path / "pub")).run()
    assert (again.copied, again.files, target.order) == (0, first.files, [])
    changed = tmp_path / "pub" / "webdataset" / "p.tar"
    data = bytearray(changed.read_bytes())
    data[600] ^= 1
    changed.write_bytes(data)
    (tmp_path / "pub" / "filtered" / "q.parquet").unlink()
    third = publication(copied, target := Watched(tmp_path / "pub")).run()
    assert sorted(target.order) == ["filtered/q.parquet", "webdataset/p.tar"] and third.copied == 2
    assert files(tmp_path / "pub")["webdataset/p.tar"] == files(copied.storage)["webdataset/p.tar"]


def test_a_call_goes_on_where_one_was_cut(copied: Deployment, tmp_path: Path) -> None:
    target = Watched(tmp_path / "pub")
    target.fails_at = "webdataset/q.tar"
    with pytest.raises(OSError, match=r"the line is cut"):
        publication(copied, target).run()
    before = files(tmp_path / "pub")
    assert before and not any(path.endswith(("index.json", ".manifest")) for path in before)
    assert PublishedRecord.read(copied.storage, target.url).state == "copying"
    target.order, target.fails_at = [], ""
    done = publication(copied, target).run()
    assert set(target.order).isdisjoint(before) and done.copied == done.files - len(before)
    assert PublishedRecord.read(copied.storage, target.url).state == "proven"


def test_files_that_are_no_more_go_only_where_that_is_asked_for(copied: Deployment, tmp_path: Path) -> None:
    publication(copied, Watched(tmp_path / "pub")).run()
    old = tmp_path / "pub" / "filtered" / "old.parquet"
    old.write_bytes(b"of a shard that is gone")
    (tmp_path / "pub" / "other").mkdir()
    (tmp_path / "pub" / "other" / "mine.txt").write_text("of somebody else")
    refused = run("publish", tmp_path / "pub", "--storage", copied.storage, "--outputs", "filtered")
    assert refused.returncode == 1
    assert refused.stderr == (
        f"mm-assets: {tmp_path}/pub: filtered/old.parquet: there, and not among what is published; "
        "--delete removes such files\n"
    )
    assert old.exists()
    done = run("publish", tmp_path / "pub", "--storage", copied.storage, "--outputs", "filtered", "--delete")
    assert done.stdout.splitlines()[0] == "removed filtered/old.parquet" and done.returncode == 0
    assert not old.exists() and (tmp_path / "pub" / "other" / "mine.txt").exists()
    assert (tmp_path / "pub" / "webdataset" / "p.tar").exists(), "of an output that is not published now"


def test_nothing_that_is_not_proven_is_published(copied: Deployment, tmp_path: Path) -> None:
    path = Path(copied.storage, "filtered", "p.parquet")
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    with pytest.raises(
        PublishError, match=r"filtered_parquet: shard 'p': not proven as it is now; mm-assets prove"
    ):
        publication(copied, Watched(tmp_path / "pub")).run()
    path.unlink()
    with pytest.raises(PublishError, match=r"filtered_parquet: shard 'p': not proven"):
        publication(copied, Watched(tmp_path / "pub")).run()
    assert not (tmp_path / "pub").exists()


def test_a_file_of_no_shard_is_not_published(copied: Deployment, tmp_path: Path) -> None:
    Path(copied.storage, "filtered", "stray.parquet").write_bytes(b"x")
    with pytest.raises(PublishError, match=r"filtered/stray.parquet: belongs to no shard"):
        publication(copied, Watched(tmp_path / "pub")).run()


def test_a_change_while_files_are_copied_is_found(copied: Deployment, tmp_path: Path) -> None:
    class Changing(Watched):
        def put(self, root: str, files: Sequence[LocalFile]) -> None:
            super().put(root, files)
            Path(root, "filtered", "p.parquet").touch()

    with pytest.raises(PublishError, match=r"filtered/p.parquet changed while it was copied: publish again"):
        publication(copied, target := Changing(tmp_path / "pub")).run()
    assert PublishedRecord.read(copied.storage, target.url).state == "copying"


@pytest.mark.parametrize("damage", ["other bytes", "other size", "lost"])
def test_what_a_target_does_not_keep_is_named(copied: Deployment, tmp_path: Path, damage: str) -> None:
    class Forgetful(Watched):
        def put(self, root: str, files: Sequence[LocalFile]) -> None:
            super().put(root, files)
            path = tmp_path / "pub" / "webdataset" / "p.tar"
            if path.exists():
                data = path.read_bytes()
                if damage == "lost":
                    path.unlink()
                else:
                    path.write_bytes(data[:-1] if damage == "other size" else data[:-1] + b"x")

    words = "missing" if damage == "lost" else "not as it is here"
    with pytest.raises(PublishError, match=rf"pub/webdataset/p.tar: {words}; publish again"):
        publication(copied, target := Forgetful(tmp_path / "pub"), ("webdataset",)).run()
    record = PublishedRecord.read(copied.storage, target.url)
    assert record.state == "copying" and "webdataset/p.tar" not in record.files


def test_rows_of_earlier_versions_of_the_table_stay_here(copied: Deployment, tmp_path: Path) -> None:
    copied.environment["MM_MAX_ASPECT_RATIO"] = "0.5"
    assert copied.run(assets=["filtered_parquet", "lance_table"]).success
    here = lance.dataset(f"{copied.storage}/lance/items.lance")
    publication(copied, Watched(tmp_path / "pub"), ("lance",)).run()
    there = lance.dataset(str(tmp_path / "pub" / "lance" / "items.lance"))
    assert there.version == here.version and len(there.versions()) == 1 < len(here.versions())
    order = [("sample_id", "ascending"), ("position", "ascending")]
    assert there.to_table().sort_by(order) == here.to_table().sort_by(order)
    used = {file.path for fragment in there.get_fragments() for file in fragment.data_files()}
    assert {path.name for path in (tmp_path / "pub/lance/items.lance/data").iterdir()} == used


def test_ledger_and_quarantine_go_where_they_are_asked_for(copied: Deployment, tmp_path: Path) -> None:
    publication(copied, Watched(tmp_path / "pub"), ("filtered", "ledger")).run()
    publication(copied, Watched(tmp_path / "pub"), ("filtered", "ledger")).run()
    there = files(tmp_path / "pub")
    assert "ledger/accounts/filtered_parquet/p.parquet" in there
    assert not any(path.startswith("ledger/published") for path in there)
    accounts = pq.read_table(tmp_path / "pub" / "ledger" / "accounts" / "filtered_parquet" / "p.parquet")
    assert accounts.num_rows > 0


def test_certificates_of_erasures_stay_here(copied: Deployment, tmp_path: Path) -> None:
    """They have hashes of what was erased, and paths; one that is there already goes with ``--delete``."""
    store = ErasureStore(copied.storage)
    store.write(Erasure.begin([Entry.of("sample_id", "x")]))
    store.write_work("x", b"in plain")
    publication(copied, Watched(tmp_path / "pub"), ("ledger",)).run()
    erasures = tmp_path / "pub" / "ledger" / "erasures"
    assert not erasures.exists()
    erasures.mkdir()
    (erasures / "old.json").write_text("{}")
    with pytest.raises(PublishError, match=r"ledger/erasures/old\.json: there, and not among what is"):
        publication(copied, Watched(tmp_path / "pub"), ("ledger",)).run()
    publication(copied, Watched(tmp_path / "pub"), ("ledger",), deletes=True).run()
    assert not any(path.startswith("ledger/erasures") for path in files(tmp_path / "pub"))


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("pub", "--outputs", "filterd"), "filterd: no output; the nearest is filtered"),
        (("memory://pub",), "memory://pub: this lies in the memory of one process"),
        (("hf://models/a/b",), "hf://models/a/b: write it as hf://datasets/USER/NAME"),
        (("hf://datasets/name",), "hf://datasets/name: write it as hf://datasets/USER/NAME"),
    ],
)
def test_what_cannot_be_is_one_line(copied: Deployment, arguments: tuple[str, ...], line: str) -> None:
    done = run("publish", *arguments, "--storage", copied.storage)
    assert done.returncode == 1 and done.stderr.startswith(f"mm-assets: {line}"), done.stderr


@pytest.mark.parametrize("place", ["", "webdataset/pub", "new", "..", "../link", "../linked-output"])
def test_the_storage_itself_is_no_target(copied: Deployment, tmp_path: Path, place: str) -> None:
    root = Path(copied.storage)
    Path(f"{root}/../link").symlink_to(root)
    Path(f"{root}/../linked-output").mkdir()
    Path(f"{root}/../linked-output/lance").symlink_to(root / "lance")
    before = files(root)
    with pytest.raises(PublishError, match=rf": lies in the storage {root}, or around it: name another"):
        publication(copied, FolderTarget(f"{root}/{place}"), deletes=True).run()
    assert files(root) == before


def test_a_prefix_of_the_same_bucket_is_told_by_its_parts() -> None:
    assert is_within("s3a://bucket//a/b/", "s3://bucket/a") and is_within("s3://bucket/a", "s3://bucket/a/")
    assert not is_within("s3://bucket/ab", "s3://bucket/a") and not is_within("/bucket/a", "s3://bucket/a")


def test_a_training_set_is_published_as_it_was_proven(copied: Deployment, tmp_path: Path) -> None:
    settings = {"MM_RAW_SHARDS": copied.raw, "MM_STORAGE": copied.storage, "DAGSTER_HOME": f"{tmp_path}/home"}
    with pytest.raises(PublishError, match=r"training: not proven; mm-assets run --assets training_set"):
        publication(copied, Watched(tmp_path / "pub"), ("training",)).run()
    made = run("run", "--assets", "training_set", **settings)
    assert made.returncode == 0, made.stderr
    publication(copied, target := Watched(tmp_path / "pub"), ("training",)).run()
    here = {path: data for path, data in files(copied.storage).items() if path.startswith("training/")}
    there = files(tmp_path / "pub")
    notes = ("training/.mm_assets/", "training/.training/")  # which no client reads
    assert there == {path: data for path, data in here.items() if not path.startswith(notes)}
    assert "training/.nv-meta/.info.json" in there and target.order[-1] == "training/README.md"
    tar = Path(copied.storage, "training", "train-000000.tar")
    os.utime(tar, ns=(1, 1))
    publication(copied, Watched(tmp_path / "pub"), ("training",)).run()
    data = bytearray(tar.read_bytes())
    data[data.index(b"PNG") + 30] ^= 1
    for path, damaged in ((tar, bytes(data)), (Path(f"{tar}.idx"), bytes(8)), (tar, bytes(512))):
        before, times = path.read_bytes(), path.stat()
        path.write_bytes(damaged)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
        with pytest.raises(PublishError, match=rf"{path.name} is not as it was written"):
            publication(copied, Watched(tmp_path / "pub2"), ("training",)).run()
        path.write_bytes(before)
    assert not (tmp_path / "pub2").exists()
