"""The examples of the documentation run."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pytest

from mm_assets_tests.formats.datasets import batch_of, item, write

DOCUMENT = Path(__file__).parents[3] / "docs" / "arrow_cache.md"
CODE = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)


def test_the_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    exec(CODE[0], {})  # noqa: S102
    assert capsys.readouterr().out == "100 no. 7 (16, 16) (1, 4, 8) dog\n"
    assert re.fullmatch(r"pets_small_train_[0-9a-f]{16}", next(Path("caches").iterdir()).name)


def test_the_interleaved_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [row for n in range(6) for row in (item(f"s{n}", n=n), item(f"s{n}", 0, text_content="t"), item(f"s{n}", 1, "image"))]
    write("arrow_cache", tmp_path / "demo" / "storage" / "arrow_cache", batch_of(rows, [pa.field("n", pa.int64())], partition="p"))
    monkeypatch.chdir(tmp_path)
    exec(CODE[1], {})  # noqa: S102
    assert len(CODE) == 2
    assert capsys.readouterr().out == "0 text t\n1 image 0\n6 dict_keys(['n'])\n"
