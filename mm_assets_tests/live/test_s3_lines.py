"""What a real S3 server refuses is one line that names the place and says what to do, whatever the
command.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path

import pytest

from mm_assets_tests.cli.commands import only_line, run, run_process
from mm_assets_tests.live.s3_server import S3Server
from tools.demo import make_shards

pytestmark = [pytest.mark.clients, pytest.mark.usefixtures("shared_workers")]

FORMATS = ("parquet", "webdataset", "lance", "arrow_cache")
Variables = dict[str, str | None]  # None: absent
WRONG: dict[str, tuple[Variables, str]] = {
    "secret": (
        {"AWS_SECRET_ACCESS_KEY": "wrong"},
        "the secret is not that of the key: see AWS_SECRET_ACCESS_KEY, or [stores] in the settings file",
    ),
    "key": (
        {"AWS_ACCESS_KEY_ID": "nobody"},
        "the server does not know this key: see AWS_ACCESS_KEY_ID and AWS_ENDPOINT_URL, or [stores] in the "
        "settings file",
    ),
    "no credentials": (
        {"AWS_ACCESS_KEY_ID": None, "AWS_SECRET_ACCESS_KEY": None},
        "no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE",
    ),
    # Of a single file the server says no more than that.
    "file": (
        {"AWS_SECRET_ACCESS_KEY": "wrong"},
        "permission denied: the credentials do not allow it, or are wrong (AWS_ACCESS_KEY_ID, ",
    ),
}


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("raw")
    make_shards(folder, members=2, pdf=0, samples=2)
    return folder


@pytest.fixture(scope="module")
def bucket(s3: S3Server, raw: Path) -> str:
    name = s3.new_bucket()
    for shard in raw.iterdir():
        s3.filesystem().put_file(str(shard), f"{name}/in/{shard.name}")
    return name


def line_of(*command: object, env: Variables) -> str:
    """The one line of a command that fails, with these variables."""
    return only_line(run(*command, **{name: value for name, value in env.items() if value is not None}))


def commands(source: str, target: str, raw: Path, folder: Path) -> list[tuple[str, Sequence[object]]]:
    """What each command is given, and the place that its line is to name."""
    reading = [
        (source, ("inspect", source)),
        (source, ("verify", source, raw)),
        (source, ("convert", source, folder / "out", "--to", "parquet")),
        (target, ("explain", "x", "--storage", target)),
    ]
    return [*reading, *((target, ("convert", raw, target, "--to", kind)) for kind in FORMATS)]


@pytest.mark.parametrize("wrong", ["secret", "key", "no credentials"])
def test_who_is_not_let_in(s3: S3Server, bucket: str, raw: Path, tmp_path: Path, wrong: str) -> None:
    variables, what = WRONG[wrong]
    for place, command in commands(f"s3://{bucket}/in", f"s3://{bucket}/out", raw, tmp_path):
        assert line_of(*command, env={**s3.env, **variables}) == f"{place}: {what}"
    home = {"DAGSTER_HOME": str(tmp_path / "home")}
    storage = {"MM_RAW_SHARDS": str(raw), "MM_STORAGE": f"s3://{bucket}/out", **home}
    assert line_of("run", env={**s3.env, **variables, **storage}) == f"s3://{bucket}/out: {what}"
    shards = {"MM_RAW_SHARDS": f"s3://{bucket}/in", "MM_STORAGE": str(tmp_path / "storage"), **home}
    told = line_of("run", env={**s3.env, **variables, **shards})
    assert told == f"no raw shards: s3://{bucket}/in: {what}"
    assert s3.filesystem().find(f"{bucket}/out") == [] and not (tmp_path / "out").exists()


def test_who_is_not_let_in_to_a_file(s3: S3Server, bucket: str, raw: Path, tmp_path: Path) -> None:
    variables, what = WRONG["file"]
    file = f"s3://{bucket}/in/web-00000.tar"
    shards = {"MM_RAW_SHARDS": file, "MM_STORAGE": str(tmp_path / "storage")}
    told = line_of("run", env={**s3.env, **variables, **shards})
    assert told.startswith(f"no raw shards: {file}: {what}")


def test_what_is_not_there(s3: S3Server, bucket: str, raw: Path, tmp_path: Path) -> None:
    expected = {
        "s3://no-such-bucket/in": "no such bucket",
        "s3://no-such-bucket/in/a.tar": "no such bucket",
        "s3://no-such-bucket/in/*.tar": "no such bucket",
        f"s3://{bucket}/none": "no such file or folder",
        f"s3://{bucket}/none/a.tar": "no such file",
    }
    for source, what in expected.items():
        for command in (
            ("inspect", source),
            ("verify", raw, source),
            ("convert", source, tmp_path / "out", "--to", "lance"),
        ):
            assert line_of(*command, env=s3.env) == f"{source}: {what}"
    told = line_of("explain", "x", "--storage", "s3://no-such-bucket/in", env=s3.env)
    assert told.startswith("s3://no-such-bucket/in: no such bucket; name the storage root")
    shards = {
        "MM_RAW_SHARDS": "s3://no-such-bucket/in s3://no-such-bucket/in/a.tar",
        "MM_STORAGE": str(tmp_path / "storage"),
    }
    told = line_of("run", env={**s3.env, **shards})
    assert (
        told == "no raw shards: s3://no-such-bucket/in/a.tar: no such bucket; s3://no-such-bucket/in: no "
        "such bucket"
    )


def test_where_nobody_answers(raw: Path, tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{unused.getsockname()[1]}"
        variables: Variables = {
            "AWS_ENDPOINT_URL": endpoint,
            "AWS_ACCESS_KEY_ID": "x",
            "AWS_SECRET_ACCESS_KEY": "x",
            "AWS_MAX_ATTEMPTS": "1",
        }
        what = f"no connection to {endpoint}: is AWS_ENDPOINT_URL right, and the server up?"
        # A process of its own says no more at its end.
        told = only_line(run_process("inspect", "s3://bucket/in", env=variables))
        assert told == f"s3://bucket/in: {what}"
        told = line_of("convert", raw, "s3://bucket/out", "--to", "parquet", env=variables)
        assert told == f"s3://bucket/out: {what}"
