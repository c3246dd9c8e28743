"""A tar that is cut or corrupt never reads as a shorter one."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pytest
import webdataset as wds

from mm_assets.formats.tar import TarDamage
from mm_assets_tests.formats.paired.shards import keys_of, paired, write_pair, write_shard, write_shards


@pytest.mark.parametrize("policy", ["skip", "partial", "error"])
@pytest.mark.parametrize("scheme", ["", "pipe:cat "])
def test_a_tar_cut_anywhere_is_an_error(policy: str, scheme: str, tmp_path: Path) -> None:
    urls = write_pair(tmp_path, images="abc", embeddings="abc")
    path = Path(urls["embeddings"])
    whole = path.read_bytes()
    last = max(at for at in range(0, len(whole), 512) if whole[at : at + 512].strip(b"\0")) + 512
    for end in range(
        0, last + 1024, 512
    ):  # two zero blocks are the end of a tar, the padding behind them is not needed
        path.write_bytes(whole[:end])
        with pytest.raises(TarDamage, match=str(path)):
            list(
                paired(
                    {"images": urls["images"], "embeddings": scheme + str(path)}, missing_key_policy=policy
                )
            )
    path.write_bytes(whole[: last + 1024])
    assert keys_of(paired(urls, missing_key_policy=policy)) == ["a", "b", "c"]


def test_a_flipped_header_is_an_error(tmp_path: Path) -> None:
    urls = write_pair(tmp_path, images="abc", embeddings="abc")
    path = Path(urls["images"])
    data = bytearray(path.read_bytes())
    data[1024 + 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(TarDamage, match="byte 1024: header checksum mismatch"):
        list(paired(urls))


def test_nothing_of_a_damaged_pair_is_yielded_and_the_handler_is_asked(tmp_path: Path) -> None:
    urls = write_shards(tmp_path, 3)
    path = tmp_path / "embeddings" / "shard_0001.tar"
    path.write_bytes(path.read_bytes()[: 512 * 3])

    ds = paired(urls, handler=wds.ignore_and_continue)
    assert keys_of(ds) == [f"s{shard:04d}_{n}" for shard in (0, 2) for n in range(3)]
    damaged = ds.reports[1]
    assert (damaged.samples, damaged.urls["embeddings"]) == (0, str(path))
    assert damaged.error is not None and damaged.error.startswith("TarDamage(")

    assert keys_of(paired(urls, handler=wds.ignore_and_stop)) == [f"s0000_{n}" for n in range(3)]
    with pytest.raises(TarDamage) as caught:
        list(paired(urls))
    assert "shard_0001.tar" in caught.value.__notes__[0]


def test_what_a_handler_lets_pass_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    urls = write_shards(tmp_path, 2)
    (tmp_path / "images" / "shard_0000.tar").unlink()
    ds = paired(urls, handler=wds.ignore_and_continue)
    assert len(list(ds)) == 3
    (message,) = caplog.messages
    assert "shard_0000.tar: ended after 0 samples by FileNotFoundError" in message
    with pytest.raises(FileNotFoundError):
        list(paired(urls))
    assert len(caplog.messages) == 1  # what is raised is not logged


def test_a_survey_tells_of_damage_and_goes_on(tmp_path: Path) -> None:
    urls = write_shards(tmp_path, 3)
    path = tmp_path / "images" / "shard_0001.tar"
    path.write_bytes(path.read_bytes()[:512])
    reports = list(paired(urls).survey())
    assert [(report.samples, report.error is None) for report in reports] == [
        (3, True),
        (0, False),
        (3, True),
    ]


def test_a_file_that_shrinks_while_it_is_read_is_an_error(tmp_path: Path) -> None:
    urls = {"images": write_shard(tmp_path, "images", "abc")}
    ds = paired(urls)
    samples = iter(ds)
    next(samples)
    os.truncate(urls["images"], 1024 + 512 + 3)
    with pytest.raises(TarDamage, match="the file ends within a member of 'b'"):
        next(samples)
    assert (ds.reports[0].keys, ds.reports[0].samples) == (3, 1)


def test_a_cut_gzip_is_an_error(tmp_path: Path) -> None:
    urls = write_pair(tmp_path, images="abc", embeddings="abc")
    packed = gzip.compress(Path(urls["images"]).read_bytes())
    path = tmp_path / "images" / "shard_0000.tar.gz"
    path.write_bytes(packed)
    assert keys_of(paired({**urls, "images": str(path)})) == ["a", "b", "c"]
    path.write_bytes(packed[:-1])
    with pytest.raises(TarDamage, match="the gzip stream is cut here"):
        list(paired({**urls, "images": str(path)}))


def test_a_gzip_bomb_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mm_assets.formats.paired.joined_tars.unpacked_limit", lambda size: 4 * size)
    path = tmp_path / "s.tar.gz"
    path.write_bytes(gzip.compress(bytes(1 << 20)))
    with pytest.raises(TarDamage, match="unpacks to more than"):
        list(paired({"images": str(path)}))


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.skipif(
    not os.path.isdir("/proc/self/fd"), reason="descriptors are counted in /proc, which only Linux has"
)
def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    urls = write_shards(tmp_path, 2)
    urls["captions"] = "pipe:cat " + urls["embeddings"]
    rename = {"captions": lambda name: name.replace("emb.npy", "txt")}
    before = open_descriptors()
    list(paired(urls, rename_files=rename))
    samples = iter(paired(urls, rename_files=rename))
    next(samples)
    del samples  # abandoned in the middle
    (tmp_path / "images" / "shard_0000.tar").write_bytes(b"")
    assert len(list(paired(urls, rename_files=rename, handler=wds.ignore_and_continue))) == 3
    with pytest.raises(FileNotFoundError) as caught:
        list(paired({**urls, "absent": urls["images"].replace("images", "absent")}, rename_files=rename))
    assert open_descriptors() == before, caught  # its traceback would keep alive what was not closed
