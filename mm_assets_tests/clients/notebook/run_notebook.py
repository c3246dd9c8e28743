"""Run the code cells of a notebook's text copy, unmodified and in order: run_notebook.py NOTEBOOK.txt FOLDER

FOLDER holds parquet/, webdataset/ and lance/. Runs by path with the clients' interpreter; of all that the
cells import, only IPython.display is replaced.
"""

import os
import re
import sys
import types
from pathlib import Path

_CODE = re.compile(r"^In \[(?:\d+|None|\s)\]:$")


def code_cells(notebook: str) -> list[str]:
    """Code follows an ``In [..]:`` line and ends at the next one, or at the rule that opens a section of
    prose.
    """
    cells: list[list[str]] = []
    inside = False
    for line in notebook.splitlines():
        if _CODE.match(line):
            inside = True
            cells.append([])
        elif line == "---":
            inside = False
        elif inside:
            cells[-1].append(line)
    return ["\n".join(cell).strip("\n") + "\n" for cell in cells]


def stub_display() -> None:
    display = types.ModuleType("IPython.display")
    display.display = lambda *shown: None  # type: ignore[attr-defined]
    display.Image = lambda data, width=None: (data, width)  # type: ignore[attr-defined]
    package = types.ModuleType("IPython")
    package.display = display  # type: ignore[attr-defined]
    sys.modules.update({"IPython": package, "IPython.display": display})


def main(notebook: Path, folder: Path) -> None:
    cells = code_cells(notebook.read_text(encoding="utf-8"))
    if not cells:
        sys.exit(f"{notebook} holds no code cell")
    stub_display()
    os.chdir(folder)
    names: dict[str, object] = {"__name__": "__main__"}
    for number, cell in enumerate(cells, 1):
        exec(compile(cell, f"<cell {number} of {len(cells)}>", "exec"), names)  # noqa: S102 (running it is the point)
    print(f"all {len(cells)} cells ran")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), Path(sys.argv[2]))
