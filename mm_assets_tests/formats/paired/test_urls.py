"""Where shards may lie."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import fsspec
import pytest
import webdataset as wds
from webdataset.gopen import gopen_schemes

from mm_assets_tests.formats.paired.shards import keys_of, paired, write_pair, write_shard, write_shards


@pytest.fixture
def urls(tmp_path: Path) -> dict[str, str]:
    return write_pair(tmp_path, images="abc", embeddings="cab")


def test_file_urls(urls: dict[str, str]) -> None:
    ds = paired({name: f"file:{path}" for name, path in urls.items()})
    assert keys_of(ds) == ["a", "b", "c"]
    assert next(iter(ds))["__url_images__"] == f"file:{urls['images']}"
    assert keys_of(paired({name: f"file://{path}" for name, path in urls.items()})) == ["a", "b", "c"]


def test_pipes(tmp_path: Path) -> None:
    patterns = write_shards(tmp_path, 3)
    plain = list(paired(patterns))
    piped = list(paired({name: f"pipe:cat {pattern}" for name, pattern in patterns.items()}))
    assert len(plain) == 9
    for one, other in zip(plain, piped, strict=True):
        assert {**other, **{name: one[name] for name in one if name.startswith("__url")}} == one
        assert other["__url_images__"] == f"pipe:cat {one['__url_images__']}"


def test_a_pipe_beside_a_file(urls: dict[str, str]) -> None:
    assert keys_of(paired({"images": urls["images"], "embeddings": f"pipe:cat {urls['embeddings']}"})) == [
        "a",
        "b",
        "c",
    ]


@pytest.mark.parametrize(
    "command", ["cat {} && exit 3", "cat {} && exec >&- && sleep 0.5 && exit 3", "cat {}.absent"]
)
def test_a_command_that_fails_is_an_error(command: str, urls: dict[str, str]) -> None:
    """Also after it has given a whole tar, and after its output has ended."""
    piped = "pipe:" + command.format(urls["embeddings"])
    with pytest.raises(OSError, match="exit"):
        list(paired({"images": urls["images"], "embeddings": [piped]}))
    ds = paired(
        {"images": urls["images"], "embeddings": [piped]}, handler=wds.ignore_and_continue, empty_check=False
    )
    assert list(ds) == []


def test_a_command_is_not_waited_for_when_another_tar_is_absent(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        list(paired({"embeddings": "pipe:yes # absent.tar", "images": str(tmp_path / "absent.tar")}))


def test_schemes_of_webdataset(urls: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    def open_store(url: str, mode: str = "rb", bufsize: int = 0, **_: Any) -> io.BytesIO:
        return io.BytesIO(Path(urls[url.split("/")[2]]).read_bytes())

    monkeypatch.setitem(gopen_schemes, "store", open_store)
    assert keys_of(paired({"images": "store://images/s.tar", "embeddings": "store://embeddings/s.tar"})) == [
        "a",
        "b",
        "c",
    ]


def test_webdatasets_rewriting(urls: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOPEN_REWRITE", f"s3://bucket={tmp_path}")
    ds = paired({name: path.replace(str(tmp_path), "s3://bucket") for name, path in urls.items()})
    assert keys_of(ds) == ["a", "b", "c"]
    assert next(iter(ds))["__url_images__"] == "s3://bucket/images/shard_0000.tar"


def test_schemes_of_fsspec(urls: dict[str, str]) -> None:
    fs = fsspec.filesystem("memory")
    for name, path in urls.items():
        fs.pipe_file(f"/paired-urls/{name}/shard_0000.tar", Path(path).read_bytes())
    try:
        ds = paired({name: f"memory://paired-urls/{name}/shard_0000.tar" for name in urls})
        assert keys_of(ds) == ["a", "b", "c"]
    finally:
        fs.rm("/paired-urls", recursive=True)


def test_an_unknown_scheme_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="nosuch"):
        list(paired({"images": "nosuch://bucket/s.tar"}))


def test_folders_with_spaces(tmp_path: Path) -> None:
    assert keys_of(paired({"images": write_shard(tmp_path / "with space", "images", "ab")})) == ["a", "b"]
