"""A raw shard counts as gone only where others of its root are listed."""

from __future__ import annotations

from pathlib import Path

import fsspec

from mm_assets.formats.raw_shards import RawAbsence, RawLocations


def test_shards_of_one_root_do_not_vouch_for_another(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    store = fsspec.filesystem("memory")
    for name in ("a", "b"):
        (disk / f"{name}.tar").write_bytes(b"")
    store.pipe({"/bucket/raw/c.tar": b"", "/bucket/raw/d.tar": b""})
    locations = RawLocations(f"{disk} memory://bucket/raw")

    def gone(*keys: str) -> list[str]:
        absence = RawAbsence(locations, locations.shards(1))
        return [key for key in keys if absence.reason_to_keep(key) is None]

    try:
        (disk / "b.tar").unlink()
        store.rm("/bucket/raw/d.tar")
        assert gone("a", "b", "c", "d") == ["b", "d"]
        (disk / "a.tar").unlink()  # an empty mount point
        assert gone("a", "b") == []
        disk.rmdir()
        assert gone("a", "b") == []
    finally:
        store.rm("/bucket", recursive=True)
