"""The real code location under a real daemon: sensor, backfill, partial failure, relaunch, its pages."""

import gzip
import io
import json
import os
import shutil
import signal
import tarfile
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import dagster as dg
import pyarrow.parquet as pq
import pytest

from mm_assets.formats.registry import reader_for
from mm_assets_tests.graph.deployment import ASSETS
from mm_assets_tests.live.browser import screenshot
from mm_assets_tests.live.daemon import DagsterDev, wait_for
from tools.demo import make_shards

pytestmark = pytest.mark.live

FIRST = [f"web-{n:05d}" for n in range(4)]
SECOND = [f"zoo-{n:05d}" for n in range(6)]
CUT, CORRUPT, KILLER = SECOND[1], SECOND[3], SECOND[4]
BAD = [CUT, CORRUPT, KILLER]
ATTEMPTS = 3  # so often a survey is tried whose worker dies
GOOD = [key for key in SECOND if key not in BAD]


@dataclass
class Live:
    dev: DagsterDev
    raw: Path
    storage: Path
    spare: Path

    def registered(self) -> list[str]:
        with self.dev.instance() as instance:
            return list(instance.get_dynamic_partitions("shards"))

    def wait_until_registered(self, keys: Iterable[str]) -> None:
        """Wait for the sensor."""

        def are_registered(instance: dg.DagsterInstance) -> bool:
            return set(keys) <= set(instance.get_dynamic_partitions("shards"))

        self.dev.wait_for(are_registered, 180, "the sensor to register the shards")

    def events(self, asset: str, run_ids: set[str]) -> list[str]:
        with self.dev.instance() as instance:
            records = instance.fetch_materializations(dg.AssetKey(asset), limit=500).records
        return sorted(str(r.partition_key) for r in records if r.run_id in run_ids)

    def run_ids(self, backfill: str) -> set[str]:
        with self.dev.instance() as instance:
            return {
                run.run_id for run in instance.get_runs(dg.RunsFilter(tags={"dagster/backfill": backfill}))
            }

    def unpassed(self, run_ids: set[str]) -> set[tuple[str, str, str | None]]:
        """(asset, check, shard) of all check evaluations of some runs that did not pass."""
        found = set()
        with self.dev.instance() as instance:
            for run_id in run_ids:
                for record in instance.get_records_for_run(
                    run_id, of_type=dg.DagsterEventType.ASSET_CHECK_EVALUATION
                ).records:
                    evaluation = record.event_log_entry.dagster_event.event_specific_data
                    if not evaluation.passed:
                        found.add(
                            (
                                evaluation.asset_key.to_user_string(),
                                evaluation.check_name,
                                evaluation.partition,
                            )
                        )
        return found


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    folder = tmp_path_factory.mktemp("graph")
    raw, storage, spare = folder / "raw", folder / "storage", folder / "spare"
    make_shards(raw, members=3, pdf=0, samples=6)
    (make_shards(folder / "pdf", members=0, pdf=1, samples=6)[0]).rename(raw / f"{FIRST[3]}.tar")
    for number, path in enumerate(make_shards(spare, members=4, pdf=2, samples=5, seed="second")):
        path.rename(spare / f"{SECOND[number]}.tar")
    # Under the strict policy bad samples fail their shards; by default they would be set aside, and only the
    # kill would be a failure.
    environment = {
        "MM_RAW_SHARDS": str(raw),
        "MM_STORAGE": str(storage),
        "MM_WORKERS": "2",
        "MM_ON_MATERIALIZE_ERROR": "error",
    }
    with DagsterDev("mm_assets.definitions", folder / "home", environment) as dev:
        yield Live(dev, raw, storage, spare)


@pytest.fixture(scope="module")
def first_run(live: Live) -> str:
    """All shards there are, found by the sensor and launched over GraphQL."""
    live.wait_until_registered(FIRST)
    tags = {"dagster/asset_partition_range_start": FIRST[0], "dagster/asset_partition_range_end": FIRST[-1]}
    run = live.dev.launch_run("all_assets", tags)
    assert live.dev.wait_for_run(run, 120) == "SUCCESS", live.dev.log()[-3000:]
    return run


def test_sensor_and_run(live: Live, first_run: str) -> None:
    for asset in ASSETS:
        assert live.events(asset, {first_run}) == FIRST
    assert live.unpassed({first_run}) == set()
    filtered = pq.read_table(live.storage / "filtered" / f"{FIRST[3]}.parquet")
    assert filtered["modality"].to_pylist().count("image") > 0


def test_every_shard_is_green_in_every_check(live: Live, first_run: str) -> None:
    for asset in ("raw_shards", *ASSETS):
        checks = live.dev.checks(asset)
        assert checks or asset == "sample_scores", "the one asset without checks by shard"
        assert checks == {name: {"succeeded": FIRST} for name in checks}


@pytest.mark.clients
def test_asset_graph_is_shown(live: Live, first_run: str, tmp_path: Path) -> None:
    """With all groups unfolded, as the picture in the README is taken (`KEEP_SCREENSHOT` names its place)."""
    picture = tmp_path / "asset_graph.png"
    groups = ("ingest", "quality", "curate", "deliver")
    unfolded = "%2C".join(f"global%40global%3A{group}" for group in groups)
    url = f"{live.dev.url}/asset-groups?expanded={unfolded}"
    screenshot(url, picture, [*groups, *ASSETS, "raw_shards", "report"], seconds=60, size=(1500, 800))
    assert picture.stat().st_size > 20_000
    if keep := os.environ.get("KEEP_SCREENSHOT"):
        shutil.copyfile(picture, keep)


@pytest.mark.clients
def test_report_shows_pictures_without_a_click(live: Live, first_run: str, tmp_path: Path) -> None:
    """Figures that equal the ledger's, plots and thumbnails, once the sensor has come by; and the page."""
    wait_for(lambda: live.dev.materializations("report"), 180, "the sensor to write the report")
    png = tmp_path / "report.png"
    page = (live.storage / "report" / "index.html").as_uri()
    screenshot(page, png, ["Report on the data set", "= filtered_parquet"], size=(1100, 1300))
    plots = ["aspect ratio", "images in a document", "pictures of kept images"]
    pictures = ["data:image/svg+xml", "data:image/webp;base64"]
    asset = tmp_path / "report_asset.png"
    screenshot(f"{live.dev.url}/assets/report", asset, plots, images=pictures, size=(1400, 1500))
    events = f"{live.dev.url}/assets/report?view=events"
    screenshot(events, png, ["Kept"], images=["data:image/webp;base64"])
    shard = f"{live.dev.url}/assets/curated_parquet?view=partitions&partition={FIRST[0]}"
    screenshot(shard, png, ["preview"], images=["data:image/webp;base64"])
    if keep := os.environ.get("KEEP_SCREENSHOT"):
        shutil.copyfile(asset, keep)


@pytest.mark.clients
def test_the_launchpad_shows_the_bounds(live: Live, tmp_path: Path) -> None:
    """As the settings have them, and valid as they stand."""
    url = f"{live.dev.url}/locations/mm_assets.definitions/jobs/all_assets"
    texts = ["bounds", "filter_actions", "max_pixels", "All defaults expanded", "No errors"]
    screenshot(url, tmp_path / "launchpad.png", texts, menus=["Materialize all…"], clicks=["Open launchpad"])


@pytest.fixture(scope="module")
def failed_backfill(live: Live, first_run: str) -> str:
    """Six more shards: one cut between two members, one with a broken json, one whose worker is killed
    while it reads.
    """
    for key in SECOND:
        if key not in BAD:
            shutil.copyfile(live.spare / f"{key}.tar", live.raw / f"{key}.tar")
    cut = (live.spare / f"{CUT}.tar").read_bytes()
    with tarfile.open(live.spare / f"{CUT}.tar") as tar:
        boundary = tar.getmembers()[4].offset
    (live.raw / f"{CUT}.tar").write_bytes(cut[:boundary])
    _corrupt_json(live.spare / f"{CORRUPT}.tar", live.raw / f"{CORRUPT}.tar")
    slow = live.raw / f"{KILLER}.tar.gz"
    _slow_tar(slow)
    live.wait_until_registered(SECOND)
    killed: list[int] = []
    watcher = threading.Thread(target=_kill_reader, args=(slow, killed))
    watcher.start()
    backfill = live.dev.launch_backfill(ASSETS, SECOND)
    status = live.dev.wait_for_backfill(backfill, 150)
    watcher.join(5)
    assert status == "COMPLETED_FAILED", live.dev.log()[-3000:]
    assert len(killed) == ATTEMPTS, "every worker that read the killer shard was killed"
    return backfill


def test_good_shards_do_not_wait_for_bad_ones(live: Live, failed_backfill: str) -> None:
    run_ids = live.run_ids(failed_backfill)
    assert len(run_ids) == 1, "a chunk of shards is one run"
    for asset in ASSETS:
        assert live.events(asset, run_ids) == GOOD, "one event for each good shard"
        shown = live.dev.partitions(asset)
        assert sorted(shown["failed"]) == BAD
        assert set(GOOD) <= set(shown["materialized"])
    log = "\n".join(_errors(live, run_ids))
    assert f"{CUT}.tar: byte" in log and "the file was cut here" in log
    assert f"{CORRUPT}.tar" in log and "not JSON" in log
    assert f"'{KILLER}'" in log and "signal 9" in log
    for folder in ("curated", "filtered", "webdataset", "scores"):
        assert not [
            p.name for p in (live.storage / folder).iterdir() if any(p.name.startswith(key) for key in BAD)
        ]


def test_checks_of_shards_that_failed(live: Live, failed_backfill: str) -> None:
    """Red is what was found; a check that nobody came to evaluate is neither red nor green."""
    passed = sorted([*FIRST, *GOOD])
    # What keeps the corrupt one from landing is no blocking check of an asset, but the strict policy on what
    # the gate has found.
    assert live.dev.checks("raw_shards")["integrity"] == {"succeeded": passed, "failed": BAD}
    for asset in ASSETS:
        checks = live.dev.checks(asset)
        assert checks == {name: {"succeeded": passed} for name in checks}, asset


def test_relaunch_from_failure_heals_exactly_the_failed(live: Live, failed_backfill: str) -> None:
    before = {
        p: p.stat().st_mtime_ns
        for folder in ("curated", "filtered")
        for p in (live.storage / folder).iterdir()
    }
    (live.raw / f"{KILLER}.tar.gz").unlink()
    for key in BAD:
        shutil.copyfile(live.spare / f"{key}.tar", live.raw / f"{key}.tar")
    relaunch = live.dev.relaunch_failed(failed_backfill)
    assert live.dev.wait_for_backfill(relaunch, 150) == "COMPLETED_SUCCESS", live.dev.log()[-3000:]
    for asset in ASSETS:
        assert live.events(asset, live.run_ids(relaunch)) == BAD
        assert live.dev.partitions(asset)["failed"] == []
    assert before == {p: p.stat().st_mtime_ns for p in before}
    batches = [b.data for b in reader_for("parquet", str(live.storage / "filtered"))]
    lance = [b.data for b in reader_for("lance", str(live.storage / "lance"))]
    assert sum(t.num_rows for t in lance) == sum(t.num_rows for t in batches)
    index = json.loads((live.storage / "webdataset" / "index.json").read_text())
    assert [s["nsamples"] for s in index["shardlist"]] == [6] * len(FIRST) + [5] * len(SECOND)


@pytest.mark.clients
def test_damage_is_red_in_the_page_and_only_there(live: Live, failed_backfill: str, tmp_path: Path) -> None:
    """A byte of one tar is flipped; the job `prove` finds it, and the pages of the asset show it."""
    tar = live.storage / "webdataset" / f"{FIRST[1]}.tar"
    content = bytearray(tar.read_bytes())
    content[700] ^= 1
    before = tar.stat()
    tar.write_bytes(content)
    os.utime(tar, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert live.dev.wait_for_run(live.dev.launch_run("prove"), 90) == "FAILURE"
    everything = sorted({*FIRST, *SECOND} & set(live.dev.partitions("final_tars")["materialized"]))
    for asset in ASSETS:
        for name, states in live.dev.checks(asset).items():
            is_damaged = (asset, name) == ("final_tars", "zero_loss")
            bad = [FIRST[1]] if is_damaged else []
            assert states == {
                "succeeded": [k for k in everything if k not in bad],
                **({"failed": bad} if bad else {}),
            }, (asset, name)
    page = f"{live.dev.url}/assets/final_tars?view=checks&checkDetail"
    # those that never landed, if nobody has mended them yet
    missing = f"Missing ({len(set(live.registered()) - set(everything))})"
    red = ["Failed (1)", missing, f"Passed ({len(everything) - 1})"]
    green = ["Failed (0)", missing, f"Passed ({len(everything)})"]
    screenshot(f"{page}=zero_loss", tmp_path / "zero_loss.png", red, inner_tabs=["Partitions"])
    screenshot(f"{page}=ledger_balance", tmp_path / "ledger_balance.png", green, inner_tabs=["Partitions"])
    if keep := os.environ.get("KEEP_SCREENSHOTS"):
        shutil.copytree(tmp_path, keep, dirs_exist_ok=True)
    tar.write_bytes(bytes(content[:700]) + bytes([content[700] ^ 1]) + bytes(content[701:]))


def _corrupt_json(source: Path, target: Path) -> None:
    with tarfile.open(source) as old, tarfile.open(target, "w", format=tarfile.USTAR_FORMAT) as new:
        for number, member in enumerate(old.getmembers()):
            data = old.extractfile(member).read()  # type: ignore[union-attr]
            if number == 0:
                data = data[:-5]
                member.size = len(data)
            new.addfile(member, io.BytesIO(data))


def _slow_tar(path: Path, megabytes: int = 2000) -> None:
    """A small gzip file, of one stream for each block, that takes seconds to unpack."""
    temporary = path.with_name(f".{path.name}.making")
    info = tarfile.TarInfo("padding.bin")
    info.size = megabytes << 20
    head, block = gzip.compress(info.tobuf(tarfile.USTAR_FORMAT)), gzip.compress(bytes(1 << 20))
    temporary.write_bytes(head + block * megabytes + gzip.compress(bytes(1024)))
    temporary.rename(path)


def _readers_of(path: Path) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if any(os.readlink(fd) == str(path) for fd in (entry / "fd").iterdir()):
                    found.append(int(entry.name))
            except (PermissionError, FileNotFoundError, ProcessLookupError):
                continue  # it has just ended
    return found


def _kill_reader(path: Path, killed: list[int]) -> None:
    """Kill whoever reads the shard, as often as it is tried."""
    deadline = time.monotonic() + 140
    while time.monotonic() < deadline and len(killed) < ATTEMPTS:
        for pid in set(_readers_of(path)) - set(killed):
            os.kill(pid, signal.SIGKILL)
            killed.append(pid)
        time.sleep(0.05)


def _errors(live: Live, run_ids: set[str]) -> list[str]:
    with live.dev.instance() as instance:
        return [
            record.event_log_entry.user_message
            for run_id in run_ids
            for record in instance.get_records_for_run(run_id).records
        ]
