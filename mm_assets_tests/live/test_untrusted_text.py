"""What the pages of a real UI ask for, where ids and file names of the data are pictures in Markdown."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import quote

import dagster as dg
import pytest

from mm_assets_tests.cli.commands import run
from mm_assets_tests.formats.images.pictures import picture
from mm_assets_tests.graph.deployment import write_tar
from mm_assets_tests.live.browser import screenshot
from mm_assets_tests.live.daemon import DagsterDev

pytestmark = [pytest.mark.live, pytest.mark.clients]


@contextmanager
def listener() -> Iterator[tuple[int, list[str]]]:
    """A web server's port, and the paths that it was asked for."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_error(404)

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port, asked
        server.shutdown()
        thread.join()


def test_no_page_asks_for_what_the_data_name(tmp_path: Path) -> None:
    with listener() as (port, asked):
        address = f"127.0.0.1:{port}"
        id_ = f"![x](http://{address}/x.png) <img src=http://{address}/i.png> [l](http://{address}/l)"
        name = f"![x](http:&#47;&#47;{address}&#47;f.png)"
        good = {"sample_id": id_, id_: id_, "texts": [None, "t"], "images": ["a.png", None]}
        lost = {"sample_id": f"{id_}2", "texts": [None], "images": [f"{id_}.png"]}
        members = {"1.json": good, "2.json": good, "3.json": lost}
        shard = {member: json.dumps(document).encode() for member, document in members.items()}
        write_tar(tmp_path / "raw" / f"{name}.tar", {**shard, "a.png": picture(0)[1]})
        write_tar(tmp_path / "raw" / "z.tar", {"4.json": json.dumps(good).encode(), "a.png": picture(0)[1]})
        write_tar(tmp_path / "raw" / "cut.tar", {f"{name}.json": b"{"})
        home = tmp_path / "home"
        settings = {"MM_RAW_SHARDS": str(tmp_path / "raw"), "MM_STORAGE": str(tmp_path / "storage")}
        settings |= {"MM_WORKERS": "1", "MM_MIN_SHARPNESS": "1", "DAGSTER_HOME": str(home)}
        assert run("run", **settings).returncode == 1
        with DagsterDev("mm_assets.definitions", home, settings) as dev:
            with dev.instance() as instance:
                (run_id, *_) = instance.get_run_ids()
                seen = Path(os.environ.get("KEEP_SCREENSHOTS", tmp_path))
                pages = {
                    "partition": (
                        f"assets/curated_parquet?view=partitions&partition={quote(name)}",
                        ["Failed (3)", name],
                    ),
                    "events": ("assets/curated_parquet?view=events", ["cut"]),
                    # the latest: of events within a millisecond the page shows one
                    "raw": ("assets/raw_shards?view=events", ["Partition z observed"]),
                    "checks": (
                        "assets/raw_shards?view=checks&checkDetail=unique_sample_ids",
                        ["unique_sample_ids"],
                    ),
                    "run": (f"runs/{run_id}", ["curated_parquet_landed"]),
                }
                for page, (path, texts) in pages.items():
                    screenshot(f"{dev.url}/{path}", seen / f"{page}.png", texts, seconds=120)
                assert asked == []
                # What would happen, if text of the data were taken for Markdown.
                described = dg.AssetObservation("raw_shards", description=id_, partition="z")
                instance.report_runless_asset_event(described)
            # The image's text stands on the page only as Markdown that became an <img>, drawn or not.
            events = f"{dev.url}/assets/raw_shards?view=events"
            screenshot(events, seen / "control.png", requested=[f"http://{address}/x.png"])
            assert "/x.png" in asked
