"""The users' notebook runs to its last PASS on our outputs.

Its text is not ours to copy: it is read in place.
"""

import re
from pathlib import Path

import pytest

from mm_assets_tests.clients.environment import ROOT, clients_bin, run
from mm_assets_tests.clients.notebook.run_notebook import code_cells

pytestmark = pytest.mark.clients

NOTEBOOK = ROOT.parent / "shared" / "seeds" / "000_4e5e178898e834c2.txt"


@pytest.mark.skipif(
    not NOTEBOOK.is_file(), reason=f"{NOTEBOOK} is not on this machine; see test_three_formats.py"
)
def test_notebook_runs_to_its_last_pass(three_formats: Path) -> None:
    runner = Path(__file__).with_name("run_notebook.py")
    lines = run([clients_bin("python"), runner, NOTEBOOK, three_formats]).splitlines()

    cells = code_cells(NOTEBOOK.read_text(encoding="utf-8"))
    promised = re.findall(r'print\(f?"(PASS: [^"{]*)', "\n".join(cells))
    passed = [line for line in lines if line.startswith("PASS")]
    assert len(promised) == len(passed) >= 14
    assert all(line.startswith(promise) for line, promise in zip(passed, promised, strict=True))
    assert lines[-1] == f"all {len(cells)} cells ran"
    assert "  Matched: 0 of" not in "\n".join(lines)  # its last section had pictures to find


def test_cells_end_where_prose_begins() -> None:
    text = "# Title\n\nIn [None]:\na = 1\n\nb = 2\n\nIn [7]:\nc = 3\n\n---\n## Prose\n\nIn [ ]:\nd = 4"
    assert code_cells(text) == ["a = 1\n\nb = 2\n", "c = 3\n", "d = 4\n"]
