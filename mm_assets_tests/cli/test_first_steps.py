"""What a new user asks for: examples to copy, and a shell that completes."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from mm_assets.cli import COMMANDS, parser_of
from mm_assets.formats.names import FORMATS
from mm_assets.settings import LOG_LEVELS
from mm_assets_tests.cli.commands import REPOSITORY, ok, refused, run
from tools.demo import make_shards


def test_examples_are_those_of_the_project(tmp_path: Path) -> None:
    told = ok("examples", tmp_path / "new" / "folder").splitlines()
    copied = sorted((tmp_path / "new" / "folder").iterdir())
    assert told == [str(path) for path in copied]
    originals = [path for path in (REPOSITORY / "examples").iterdir() if path.suffix in (".py", ".ipynb")]
    assert {path.name: path.read_bytes() for path in copied} == {
        path.name: path.read_bytes() for path in originals
    }
    assert {"without_dagster.py", "three_formats.ipynb"} <= {path.name for path in copied}


def test_examples_replace_nothing(tmp_path: Path) -> None:
    (tmp_path / "zip_format.py").write_text("mine")
    assert "zip_format.py: it is there already" in refused("examples", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["zip_format.py"]
    assert (tmp_path / "zip_format.py").read_text() == "mine"


def completions(typed: str, folder: Path) -> list[str]:
    """What bash offers for the last word of a line."""
    words = typed.split(" ")
    quoted = " ".join(f"'{word}'" for word in words)
    ask = f"COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; _mm_assets"
    script = f"{ok('completion', 'bash')}\n{ask}\nprintf '%s\\n' \"${{COMPREPLY[@]}}\""
    done = subprocess.run(
        ["bash", "--norc", "-u", "-c", script], cwd=folder, capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("mm-assets ", list(COMMANDS)),
        ("mm-assets in", ["inspect", "init"]),
        ("mm-assets convert a b --to ", list(FORMATS)),
        ("mm-assets convert --to web", ["webdataset"]),
        ("mm-assets convert a --dry", ["--dry-run"]),
        ("mm-assets run --log-level ", list(LOG_LEVELS)),
        ("mm-assets completion ", ["bash", "zsh", "fish", "--help"]),
        ("mm-assets alerts t", ["test"]),
        ("mm-assets convert demo/r", []),  # then bash offers files
        ("mm-assets absent --", []),
    ],
)
def test_bash_offers(typed: str, offered: list[str], tmp_path: Path) -> None:
    assert completions(typed, tmp_path) == offered


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_command_and_flag_is_in_the_script(shell: str) -> None:
    script = ok("completion", shell)
    (commands,) = (action.choices for action in parser_of(())._actions if isinstance(action.choices, dict))
    assert set(commands) == set(COMMANDS)
    for name, parser in commands.items():
        lines = [line for line in script.splitlines() if f'"{name} ' in line or f"_from {name}'" in line]
        for action in parser._actions:
            for flag in action.option_strings:
                shown = f"-l {flag[2:]}" if shell == "fish" else flag
                assert not flag.startswith("--") or any(shown in line for line in lines), (name, flag)


def test_a_run_prints_events_only_if_asked(tmp_path: Path) -> None:
    make_shards(tmp_path / "raw", members=1, pdf=0, samples=2)
    places = {"MM_RAW_SHARDS": str(tmp_path / "raw"), "MM_STORAGE": str(tmp_path / "storage")}
    home = {"DAGSTER_HOME": str(tmp_path / "home"), "MM_WORKERS": "1"}
    quiet = run("run", "--assets", "curated_parquet", **places, **home)
    assert (quiet.returncode, quiet.stderr) == (0, "")
    (tmp_path / "storage" / "curated" / "web-00000.parquet").unlink()
    loud = run("run", "--assets", "curated_parquet", "--log-level", "debug", **places, **home)
    assert loud.returncode == 0
    assert "ASSET_MATERIALIZATION" in loud.stderr and "STEP_SUCCESS" in loud.stderr
