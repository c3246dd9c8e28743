"""`mm-assets ui` before it serves: what is wrong with the settings is one line. That it serves is seen by
`mm_assets_tests/live`.
"""

from pathlib import Path

import pytest

from mm_assets_tests.cli.commands import only_line, run_process


@pytest.mark.parametrize(
    ("variables", "line"),
    [
        ({"MM_WORKERS": "many"}, "MM_WORKERS must be a number, not 'many'"),
        ({"MM_STORGE": "x"}, "MM_STORGE: no such setting; the nearest is MM_STORAGE"),
        ({"MM_RAW_SHARDS": "it's"}, 'raw shards "it\'s": No closing quotation'),
        ({"DAGSTER_HOME": "{folder}/notes.txt"}, "{folder}/notes.txt: a file, not a folder"),
        ({"MM_PLUGINS": "no_such_module"}, "MM_PLUGINS: module 'no_such_module' cannot be imported"),
    ],
)
def test_settings_that_cannot_work_are_one_line(variables: dict[str, str], line: str, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("no folder")
    given = {name: value.format(folder=tmp_path) for name, value in variables.items()}
    done = run_process("ui", env=given, cwd=tmp_path)
    assert only_line(done).startswith(line.format(folder=tmp_path))
    assert not (tmp_path / ".dagster").exists()


def test_a_port_that_is_none(tmp_path: Path) -> None:
    done = run_process("ui", "--port", "http", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
