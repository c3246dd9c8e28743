"""Lists of hashes that other programs write."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mm_assets.filters.id_list import BadList, IdList
from mm_assets.filters.known_hashes import KnownHashes, opened_hash_lists

SHA256, MD5, PDQ = "ab" * 32, "cd" * 16, "ef" * 32


def test_lists_of_each_kind_of_file(tmp_path: Path) -> None:
    """What is not listed is not found; digits may be of either case, columns may lack values."""
    (tmp_path / "lines.txt").write_text(f"\ufeff# of {PDQ}\n{SHA256.upper()}\r\n\n#\n{MD5}\n")
    (tmp_path / "columns.csv").write_text(f"note,md5,sha256\nx,{MD5},\ny,,{SHA256}\n")
    (tmp_path / "columns.tsv").write_text(f"pdq\tradius\n{PDQ}\t3\n{PDQ}\t31\n{PDQ}\t\n")
    rows = [{"sha256": SHA256, "md5": None, "pdq": PDQ}, {"sha256": None, "md5": MD5, "pdq": None}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "columns.parquet")
    lists = opened_hash_lists([str(tmp_path / "*.txt"), str(tmp_path / "columns.{csv,tsv,parquet}")])
    found = {
        each.name: (
            each.has("sha256", SHA256),
            each.has("md5", MD5),
            each.has("sha256", PDQ),
            len(each.pictures),
        )
        for each in lists
    }
    assert found == {
        "lines.txt": (True, True, False, 0),
        "columns.csv": (True, True, False, 0),
        "columns.tsv": (False, False, False, 1),
        "columns.parquet": (True, True, False, 1),
    }
    (wide,) = (each for each in lists if each.name == "columns.tsv")
    off_by_16 = f"{int(PDQ, 16) ^ 0xFFFF:064x}"
    assert wide.pictures.nearest(off_by_16) == (0, 16), "the widest radius of a hash counts"
    (default,) = (each for each in lists if each.name == "columns.parquet")
    off_by_31, off_by_32 = (f"{int(PDQ, 16) ^ (1 << bits) - 1:064x}" for bits in (31, 32))
    assert default.pictures.nearest(off_by_31) == (0, 31) and default.pictures.nearest(off_by_32) is None


def test_a_copy_has_the_same_and_is_none_of_a_list_of_ids(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text(f"sha256\n{SHA256}\n")
    (listed,) = opened_hash_lists([str(tmp_path / "x.csv")])
    ids = IdList.of(str(tmp_path / "x.csv"))
    assert ids.digest == listed.digest
    for each in (listed, ids):
        each.publish(str(tmp_path / "lists"))
    assert len(list((tmp_path / "lists").iterdir())) == 2
    (tmp_path / "x.csv").unlink()
    copy = type(listed)(listed.uri, listed.digest, listed.columns, str(tmp_path / "lists"))
    assert copy.has("sha256", SHA256) and not copy.has("sha256", PDQ)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", f"{SHA256}\n{MD5}0\n", f"row 2: sha256: '{MD5}0' is not 64 hex digits"),
        ("a.txt", f"# {MD5}\nxy\n", "row 2: sha256: 'xy' is not 64 hex digits"),
        ("a.csv", f"sha256,md5\n{SHA256},\n,\n", "row 2: no value of sha256 or md5"),
        ("a.csv", "id,hash\n1,2\n", "no column sha256 or md5 or pdq; its columns: 'id', 'hash'"),
        ("a.csv", f"pdq,radius\n{PDQ},32\n", "row 1: radius: '32' is not 0 to 31"),
        ("a.csv", f"pdq,radius\n{PDQ},-1\n", "row 1: radius: '-1' is not 0 to 31"),
        ("a.csv", "md5\nxy\n", "row 1: md5: 'xy' is not 32 hex digits"),
        ("a.csv", "md5,md5\n", "it has 2 columns md5: leave one"),
        ("a.parquet", "no", "not a readable parquet file"),
    ],
)
def test_a_bad_list_is_one_line(tmp_path: Path, name: str, content: str, message: str) -> None:
    file = tmp_path / name
    file.write_text(content)
    with pytest.raises(BadList) as caught:
        opened_hash_lists([str(file)])[0].read()
    assert str(caught.value).removeprefix("MM_HASH_LISTS: ").startswith(f"{file}: {message}")


def test_the_nearest_within_its_own_radius() -> None:
    known = KnownHashes(["00" * 32, "00" * 31 + "0f"], [0, 8])
    assert known.nearest("00" * 32) == (0, 0)
    assert known.nearest("00" * 31 + "01") == (1, 3)
    assert known.nearest("ff" * 32) is None
    assert KnownHashes([], 31).nearest("00" * 32) is None
