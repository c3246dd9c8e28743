"""``mm-assets show`` after a run of the graph: quarantine, scores and ledger as the assets have left them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from mm_assets_tests.cli.commands import ok
from mm_assets_tests.cli.documents import image, sample
from mm_assets_tests.formats.raw_tars import make_tar
from mm_assets_tests.graph.deployment import Deployment


def test_a_sample_of_a_run(deploy: Callable[..., Deployment], tmp_path: Path) -> None:
    broken = b"\xff\xd8\xff no picture"
    make_tar(tmp_path / "raw" / "a.tar", [*sample("two"), *sample("broken", broken)])
    bounds = {"MM_MIN_ASPECT_RATIO": "1", "MM_MAX_ASPECT_RATIO": "2", "MM_ON_MATERIALIZE_ERROR": "drop_row"}
    deployment = deploy(**bounds)
    assert deployment.run().success
    dropped = "dropped in filtered_parquet by aspect_ratio: wider than max_ratio (score 3.5, asked for 1..2)"
    assert ok("show", "two", "--storage", deployment.storage).splitlines()[3:] == [
        "[0] text",
        "    text of two",
        f"[1] image 30x20 png {len(image(30))} B",
        f"[2] image 70x20 png {len(image(70))} B",
        f"    ! {dropped}",
    ]
    lines = ok("show", "broken", "--storage", deployment.storage).splitlines()
    assert lines[5] == f"[1] image {len(broken)} B"
    assert lines[6].startswith("    ! quarantined in curated_parquet: undecodable_image: ")
    assert "    raw: 14 bytes" in lines and "      ff d8 ff 20 6e 6f 20 70 69 63 74 75 72 65" in lines
    page = ok("show", "broken", "--storage", deployment.storage, "--html", "-")
    assert '<article class="item quarantined">\n<h3>[1] image 14 B · in quarantine</h3>' in page
    assert f'<p class="remark" dir="auto">{dropped}</p>' in page
