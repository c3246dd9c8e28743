"""The examples of the documentation run."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pytest

from mm_assets.interleaved import build_source_ref
from mm_assets_tests.formats.datasets import batch_of, item, write

DOCUMENT = Path(__file__).parents[3] / "docs" / "arrow_cache.md"
LATER = build_source_ref("raw.tar", "1.png")
CODE = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)


def test_the_example(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    exec(CODE[0], {})  # noqa: S102
    assert capsys.readouterr().out == "100 no. 7 (16, 16) (1, 4, 8) dog\n"
    assert re.fullmatch(r"pets_small_train_[0-9a-f]{16}", next(Path("caches").iterdir()).name)


def test_the_interleaved_example(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = []
    for name in (f"s{n}" for n in range(6)):
        rows += [item(name, n=1), item(name, 0, text_content="t"), item(name, 1, "image", source_ref=LATER)]
    caches = tmp_path / "demo" / "storage" / "arrow_cache"
    write(
        "arrow_cache", caches, batch_of(rows, [pa.field("n", pa.int64())], partition="p"), materialize=False
    )
    monkeypatch.chdir(tmp_path)
    exec(CODE[1], {})  # noqa: S102
    assert len(CODE) == 2
    assert capsys.readouterr().out == "0 text t\n1 image 0\n6 dict_keys(['n'])\n"
