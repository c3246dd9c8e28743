"""``mm-assets`` in clumsy hands: one line that says what is wrong and where, no traceback, nothing
half-written.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mm_assets import cli
from mm_assets_tests.cli.commands import (
    REPOSITORY,
    STILLBORN,
    as_a_user,
    environment,
    interrupt,
    lines,
    only_line,
    run,
    run_process,
)
from mm_assets_tests.formats.raw_tars import make_tar
from tools.demo import make_shards

FORMATS = ("parquet", "webdataset", "lance", "arrow_cache")


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_a_command_builds_no_parser_but_its_own(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    built = []

    def noted(command: str) -> Callable[[Any], None]:
        add = adder(command)
        return lambda commands: (built.append(command), add(commands))[1]

    adder = cli._adder
    monkeypatch.setattr(cli, "_adder", noted)
    assert cli.main([name, "--help"]) == 0
    assert capsys.readouterr().out.startswith(f"usage: mm-assets {name} ")
    assert built == [name]


def test_the_help_has_all_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    told = capsys.readouterr().out
    assert [line.split()[0] for line in told.splitlines() if line.startswith("    ") and line[4] != " "] == [
        *cli.COMMANDS
    ]


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lines") / "raw"
    make_shards(folder, members=2, pdf=0, samples=3)
    return folder


@pytest.fixture(scope="module")
def outputs(raw: Path) -> Path:
    """The raw shards in each format."""
    for kind in FORMATS:
        assert run("convert", raw, raw.parent / kind, "--to", kind).returncode == 0
    return raw.parent


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A disk of 300 KB: one shard fits, two do not."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if (
        os.geteuid()
        or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=300k", "none", disk], check=False).returncode
    ):
        pytest.skip("a disk can only be mounted by root")
    yield disk
    subprocess.run(["umount", "--lazy", disk], check=True)


def files(folder: Path) -> list[str]:
    return sorted(
        path.name for path in folder.rglob("*") if path.is_file() and path.parent.name != ".origins"
    )


# --- paths ---


@pytest.mark.parametrize(
    "command", [("inspect",), ("verify", "{raw}"), ("convert", "{folder}/out", "--to", "parquet")]
)
@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("{folder}/none", "{folder}/none: no such file or folder"),
        ("{folder}/notes.txt/x", "{folder}/notes.txt/x: no such file or folder"),
        ("{folder}/*.tar", "{folder}/*.tar: no such file"),
        ("{folder}/s-{{0..3}}.tar", "{folder}/s-0.tar: no such file"),
        (
            "{folder}/s-{{0..999999999999}}.tar",
            "{folder}/s-{{0..999999999999}}.tar: the braces stand for 1,000,000,000,000 names",
        ),
        ("{folder}/{{a", "{folder}/{{a: a brace without its partner"),
        ("odd://x/a.tar", "odd://x/a.tar: Protocol not known: odd"),
        ("sftp://x/a.tar", 'sftp://x/a.tar: SFTPFileSystem requires "paramiko" to be installed'),
        ("http://127.0.0.1:1/a.tar", "http://127.0.0.1:1/a.tar: no connection to 127.0.0.1:1"),
    ],
)
def test_a_source_that_is_none(
    raw: Path, tmp_path: Path, command: tuple[str, ...], source: str, line: str
) -> None:
    (tmp_path / "notes.txt").write_text("not data")
    name, *others = (word.format(raw=raw, folder=tmp_path) for word in command)
    given = (
        [*others, source.format(folder=tmp_path)]
        if name == "verify"
        else [source.format(folder=tmp_path), *others]
    )
    assert only_line(run(name, *given)).startswith(line.format(folder=tmp_path))
    assert files(tmp_path) == ["notes.txt"]


@pytest.mark.parametrize(
    "command",
    [
        ("inspect", ""),
        ("verify", "{raw}", ""),
        ("verify", "", "{raw}"),
        ("convert", "", "out", "--to", "parquet"),
        ("convert", "{raw}", " ", "--to", "lance"),
    ],
)
def test_an_empty_path_is_none(
    raw: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    """It would be the folder at hand, or the root of all files."""
    monkeypatch.chdir(tmp_path)
    done = run(*(word.format(raw=raw) for word in command))
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].endswith("it is empty: is a variable of the shell not set?")
    assert files(tmp_path) == []


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("target", ["notes.txt", "notes.txt/deep/er"])
def test_an_output_that_cannot_be_made(raw: Path, tmp_path: Path, kind: str, target: str) -> None:
    (tmp_path / "notes.txt").write_text("not data")
    done = run("convert", raw, tmp_path / target, "--to", kind)
    assert only_line(done) == f"{tmp_path}/notes.txt: a file, not a folder"
    assert (done.stdout, files(tmp_path)) == ("", ["notes.txt"])


@pytest.mark.parametrize(
    ("kind", "target"),
    [*((kind, "closed") for kind in FORMATS), ("parquet", "closed/deep/er"), ("lance", "closed/deep/er")],
)
def test_an_output_that_may_not_be_made(raw: Path, tmp_path: Path, kind: str, target: str) -> None:
    (tmp_path / "closed").mkdir(mode=0o555)
    done = run_process("convert", raw, tmp_path / target, "--to", kind, as_user=True)
    assert only_line(done) == f"{tmp_path}/closed: permission denied"
    assert (done.stdout, files(tmp_path)) == ("", [])


@pytest.mark.parametrize("kind", FORMATS)
def test_a_read_only_disk(raw: Path, small: Path, kind: str) -> None:
    subprocess.run(["mount", "-o", "remount,ro", small], check=True)
    assert (
        only_line(run("convert", raw, small / "out", "--to", kind))
        == f"{small}: the file system is read-only"
    )


@pytest.mark.parametrize("kind", FORMATS)
def test_a_full_disk_fails_what_does_not_fit(raw: Path, small: Path, kind: str) -> None:
    done = run("convert", raw, small / "out", "--to", kind, "--workers", "1")
    assert all(
        line.startswith(f"{small}/out") and "no space left on the device" in line for line in lines(done)
    ), done
    assert not [name for name in files(small) if name.endswith((".tmp", ".building"))]
    (small / "out").exists() and shutil.rmtree(small / "out")
    assert not list(small.iterdir())


@pytest.mark.parametrize("kind", ["parquet", "arrow_cache"])
def test_no_room_for_temporary_files(raw: Path, small: Path, tmp_path: Path, kind: str) -> None:
    packed = tmp_path / "packed"
    make_shards(packed, members=1, pdf=0, samples=3)
    subprocess.run(["gzip", packed / "web-00000.tar"], check=True)
    (small / "filler").write_bytes(bytes(250_000))
    done = run_process("convert", packed, tmp_path / "out", "--to", kind, env={"TMPDIR": str(small)})
    assert only_line(done).endswith(
        f"the folder {small} for temporary files (TMPDIR): no space left on the device"
    )


def test_what_may_not_be_read_is_named(outputs: Path, tmp_path: Path) -> None:
    for kind, name in [
        ("raw", "web-00000.tar"),
        ("parquet", "web-00000.parquet"),
        ("arrow_cache", "web-00000/shard-00000.arrow"),
    ]:
        shutil.copytree(outputs / kind, tmp_path / kind)
        (tmp_path / kind / name).chmod(0)
        for command in (["inspect", tmp_path / kind], ["verify", tmp_path / kind, outputs / "raw"]):
            with as_a_user():
                line = only_line(run(*command))
            assert line.startswith(f"{tmp_path}/{kind}/{name}: ") and line.endswith("permission denied")
        done = run_process(
            "convert", tmp_path / kind, tmp_path / f"{kind}-out", "--to", "parquet", as_user=True
        )
        assert only_line(done).startswith(f"{tmp_path}/{kind}/{name}: ")
        assert files(tmp_path / f"{kind}-out") == ["web-00001.parquet"]
    (tmp_path / "raw").chmod(0)
    for command in (
        ["inspect", tmp_path / "raw" / "web-00001.tar"],
        ["verify", tmp_path / "raw" / "web-00001.tar", outputs / "raw"],
    ):
        with as_a_user():
            assert only_line(run(*command)) == f"{tmp_path}/raw/web-00001.tar: permission denied"


def test_a_failure_without_a_name_is_told_with_its_file_and_equal_ones_once(
    outputs: Path, tmp_path: Path
) -> None:
    shutil.copytree(outputs / "lance", tmp_path / "lance")
    for file in (tmp_path / "lance" / "items.lance" / "data").iterdir():
        file.chmod(0)
    done = run_process("convert", tmp_path / "lance", tmp_path / "out", "--to", "parquet", as_user=True)
    assert (
        only_line(done)
        == f"{tmp_path}/lance/items.lance: unreadable Lance data: permission denied (2 partitions)"
    )


def test_fields_that_are_not_found_are_told_with_their_file(raw: Path, tmp_path: Path) -> None:
    for kind in ("parquet", "lance"):  # the second looks at all schemas beforehand
        done = run_process("convert", raw, tmp_path / kind, "--to", kind, "--fields", "url,gone")
        assert done.returncode == 0
        told = [
            f"mm-assets: warning: {raw}/web-0000{n}.tar: fields not found, filled with null: gone"
            for n in range(2)
        ]
        assert sorted(done.stderr.splitlines()) == told


# --- names and letters ---


@pytest.fixture
def foreign(tmp_path: Path) -> Path:
    document = {"texts": ["größer", "日本"], "images": [None, None], "ключ": 1}
    return make_tar(tmp_path / "ä" / "größe.tar", [("ключ.json", document)]).parent


@pytest.mark.parametrize(
    "locale",
    [
        {"LC_ALL": "C", "PYTHONIOENCODING": "ascii"},
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    ],
)
def test_a_terminal_that_has_no_such_letters(
    raw: Path, foreign: Path, tmp_path: Path, locale: dict[str, str]
) -> None:
    shown = run_process("inspect", foreign, env=locale)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert r"  \u043a\u043b\u044e\u0447: int64" in shown.stdout.splitlines()
    assert r"  [0] text: gr\xf6\xdfer" in shown.stdout.splitlines()
    different = run_process("verify", foreign, raw, env=locale)
    assert different.returncode == 1 and r"sample '\u043a\u043b\u044e\u0447', position 0" in different.stderr
    explained = run_process("explain", "ключ", "--storage", foreign, env=locale)
    assert only_line(explained).endswith("name the storage root of the graph with --storage or MM_STORAGE")
    if "PYTHONUTF8" not in locale:
        assert (
            run_process("convert", foreign, tmp_path / "out", "--to", "parquet", env=locale).returncode == 0
        )


def test_names_that_are_not_utf8(raw: Path, tmp_path: Path) -> None:
    odd = os.fsdecode(os.fsencode(tmp_path) + b"/odd-\xff.tar")
    shutil.copyfile(raw / "web-00000.tar", odd)
    assert run_process("inspect", odd).returncode == 0
    escaped = r"odd-\udcff"
    assert only_line(run("inspect", odd + "x")) == f"{tmp_path}/{escaped}.tarx: no such file or folder"
    line = only_line(run("convert", odd, tmp_path / "out", "--to", "parquet"))
    assert line == f"'{escaped}': a name that is not UTF-8; rename the file or folder"
    assert not (tmp_path / "out").exists()
    for kind in ("parquet", "lance"):
        out = os.fsdecode(os.fsencode(tmp_path) + b"/out-\xff")
        assert all(
            "a name that is not UTF-8; rename the file or folder" in line
            for line in lines(run("convert", raw, out, "--to", kind))
        )
    assert only_line(run("explain", "\udcff", "--storage", tmp_path)).startswith(
        r"'\udcff' is not UTF-8, so it is the id of no sample"
    )


# --- streams and signals ---


def test_readers_that_have_seen_enough(outputs: Path) -> None:
    for command in (["inspect", outputs / "raw"], ["verify", outputs / "raw", outputs / "parquet"]):
        read, write = os.pipe()
        os.close(read)
        done = run_process(*command, stdout=write)
        os.close(write)
        assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.parametrize(
    "command",
    [("inspect", "{raw}"), ("verify", "{raw}", "{raw}"), ("--version",), ("--help",), ("convert", "-h")],
)
def test_output_that_cannot_be_written(raw: Path, command: tuple[str, ...]) -> None:
    given = [word.format(raw=raw) for word in command]
    with open("/dev/full", "w") as full:
        done = run_process(*given, stdout=full, env={"PYTHONUNBUFFERED": None})
    assert only_line(done) == "standard output: no space left on the device"


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (("inspect", "none"), 1),
        (("verify", "{raw}", "{raw}"), 0),
        (("convert",), 2),
        (("inspect", "{raw}"), 0),
    ],
)
def test_errors_that_cannot_be_written_have_their_exit_code(
    raw: Path, command: tuple[str, ...], code: int
) -> None:
    with open("/dev/full", "w") as full:
        done = run_process(*(word.format(raw=raw) for word in command), stderr=full)
    assert done.returncode == code


def test_a_warning_that_cannot_be_written_fails_no_shard(raw: Path, tmp_path: Path) -> None:
    with open("/dev/full", "w") as full:
        command = ("convert", raw, tmp_path / "out", "--to", "parquet", "--fields", "none")
        done = run_process(*command, stderr=full)
    assert done.stdout.startswith(f"{tmp_path}/out: 2 partitions, 6 samples")


# --- flags ---


@pytest.mark.parametrize(
    ("command", "line"),
    [
        (
            ("convert", "{raw}", "{out}", "--to", "parquet", "--max-w", "3"),
            "--max-w: no such flag; the nearest is --max-words",
        ),
        (("convert", "{raw}", "{out}", "--too", "parquet"), "--too: no such flag; the nearest is --to"),
        (
            ("convert", "{raw}", "{out}", "--to", "parquet", "--mod=ignore"),
            "--mod: no such flag; the nearest is --mode",
        ),
        (("verify", "{raw}", "{raw}", "--texts", "a"), "--texts: no such flag; the nearest is --texts-field"),
        (("run", "--dry"), "--dry: no such flag; the nearest is --dry-run"),
        (("alerts", "test", "--zzz"), "--zzz: no such flag"),
        (("--vers",), "--vers: no such flag; the nearest is --version"),
        (
            ("convert", "{raw}", "{out}", "--to", "parquet", "--workers", "9" * 4301),
            f"argument --workers: not a number of processes: '{'9' * 900}",
        ),
        (
            ("convert", "{raw}", "{out}", "--to", "parquet", "--max-batch-bytes", "9" * 4301),
            "argument --max-batch-bytes: not a size in bytes: '9",
        ),
        (
            ("convert", "{raw}", "{out}", "--to", "parquet", "--min-image-side", "9" * 400),
            "argument --min-image-side: must be a whole number of at most 18 digits",
        ),
        (
            ("convert", "{raw}", "{out}", "--to", "parquet", "--fields", "\udcff"),
            "argument --fields: must be UTF-8 text without null characters",
        ),
        (
            ("convert", "{raw}", "{out}", "--to", "parquet", "--keep-images", "\udcff"),
            "argument --keep-images: must be UTF-8 text without null characters",
        ),
        (
            ("inspect", "{raw}", "--texts-field", "\udcff"),
            "argument --texts-field: must be UTF-8 text without null characters",
        ),
        (("run", "--limit", "9" * 4301), "argument --limit: not a number of shards: '9"),
    ],
)
def test_a_flag_that_is_none_or_has_no_such_value(
    raw: Path, tmp_path: Path, command: tuple[str, ...], line: str
) -> None:
    done = run(*(word.format(raw=raw, out=tmp_path / "out") for word in command))
    assert done.returncode == 2
    last = done.stderr.splitlines()[-1]
    assert last.partition("error: ")[2].startswith(line)
    assert len(last) < 1100
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("closed", ["0", "1", "2", "012"])
def test_streams_that_are_closed(raw: Path, tmp_path: Path, closed: str) -> None:
    """A worker's files must not become its stderr, for one."""
    command = f'exec "$@" {" ".join(f"{number}>&-" for number in closed)}'
    arguments = [
        sys.executable,
        "-m",
        "mm_assets.cli",
        "convert",
        str(raw),
        str(tmp_path / "out"),
        "--to",
        "parquet",
        "--fields",
        "gone",
    ]
    done = subprocess.run(
        ["sh", "-c", command, "sh", *arguments],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done
    assert files(tmp_path / "out") == ["web-00000.parquet", "web-00001.parquet"]


def test_an_interrupt_is_one_line(raw: Path, tmp_path: Path) -> None:
    """It goes to the whole group, also to workers that are still starting."""
    note = tmp_path / "started"
    (tmp_path / "sitecustomize.py").write_text(
        STILLBORN.format(f"open({str(note)!r}, 'w').close(); import time; time.sleep(60)")
    )
    command = [
        sys.executable,
        "-m",
        "mm_assets.cli",
        "convert",
        str(raw),
        str(tmp_path / "out"),
        "--to",
        "lance",
    ]
    variables = environment(PYTHONPATH=f"{tmp_path}{os.pathsep}{REPOSITORY}")
    restored = (
        "import signal, os, sys; signal.signal(2, signal.default_int_handler); os.execv(sys.argv[1], "
        "sys.argv[1:])"
    )
    process = subprocess.Popen(
        [sys.executable, "-S", "-c", restored, *command],
        env=variables,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert interrupt(process, note) == (130, "mm-assets: interrupted; nothing half-written was published\n")
    assert not (tmp_path / "out").exists()


# --- workers ---


@pytest.mark.parametrize(
    ("action", "line"),
    [
        ("os._exit(7)", "worker processes do not start: worker ended with exit status 7"),
        (
            "os.kill(os.getpid(), 9)",
            "worker processes do not start: worker killed by signal 9 (SIGKILL), as the kernel does "
            "when memory",
        ),
        (
            "raise SystemExit('no memory for this')",
            "worker processes do not start: SystemExit: no memory for this",
        ),
    ],
)
def test_workers_that_cannot_start(raw: Path, tmp_path: Path, action: str, line: str) -> None:
    (tmp_path / "sitecustomize.py").write_text(STILLBORN.format(action))
    done = run_process(
        "convert",
        raw,
        tmp_path / "out",
        "--to",
        "parquet",
        env={"PYTHONPATH": f"{tmp_path}{os.pathsep}{REPOSITORY}"},
    )
    assert only_line(done).startswith(line)
    assert not (tmp_path / "out").exists()


def test_what_a_worker_says_before_it_starts_is_kept_when_it_does(raw: Path, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(STILLBORN.format("print('hello', file=sys.stderr)"))
    variables = {"PYTHONPATH": f"{tmp_path}{os.pathsep}{REPOSITORY}"}
    done = run_process("convert", raw, tmp_path / "out", "--to", "parquet", "--workers", "1", env=variables)
    assert (done.returncode, done.stderr) == (0, "hello\n")


def test_as_many_workers_as_the_system_allows(tmp_path: Path) -> None:
    for number in range(20):
        make_tar(tmp_path / "raw" / f"{number}.tar", [(f"{number}.json", {"texts": ["x"]})])
    arguments = [
        sys.executable,
        "-m",
        "mm_assets.cli",
        "convert",
        str(tmp_path / "raw"),
        str(tmp_path / "out"),
        "--to",
        "parquet",
    ]
    limited = ["sh", "-c", 'ulimit -n 25; exec "$@"', "sh", *arguments, "--workers", "20"]
    few = subprocess.run(limited, env=environment(), capture_output=True, text=True, check=False)
    assert (few.returncode, few.stderr) == (0, "")
    assert len(files(tmp_path / "out")) == 20
