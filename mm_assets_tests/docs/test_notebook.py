"""The notebook of ``examples/``: its cells run one after the other, and print what is stored with them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from mm_assets_tests.docs.pages import ROOT

NOTEBOOK = ROOT / "examples" / "three_formats.ipynb"
_RUN = """
import contextlib, io, json, sys
names, printed = {"__name__": "__main__"}, []
for cell in json.load(sys.stdin):
    with contextlib.redirect_stdout(io.StringIO()) as output:
        exec(compile(cell, "<cell>", "exec"), names)
    printed.append(output.getvalue())
print(json.dumps(printed))
"""


def test_the_notebook_prints_what_it_shows(tmp_path: Path) -> None:
    cells = [cell for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == "code"]
    done = subprocess.run(
        [sys.executable, "-c", _RUN],
        input=json.dumps(["".join(cell["source"]) for cell in cells]),
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    shown = ["".join(line for output in cell["outputs"] for line in output["text"]) for cell in cells]
    assert json.loads(done.stdout.splitlines()[-1]) == shown
    assert shown[-1] == "equal\n"
