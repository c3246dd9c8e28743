"""The example of the documentation runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCUMENT = Path(__file__).parents[3] / "docs" / "arrow_cache.md"


def test_the_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    [code] = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(code, {})  # noqa: S102
    assert capsys.readouterr().out == "100 no. 7 (16, 16) (1, 4, 8) dog\n"
    assert re.fullmatch(r"pets_small_train_[0-9a-f]{16}", next(Path("caches").iterdir()).name)
