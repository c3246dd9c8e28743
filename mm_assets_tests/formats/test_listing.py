"""Which files a location names: links are followed once, what looks like a shard and is none is told or fails
alone.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from mm_assets.formats.names import PACKED_TAR_SUFFIXES, TAR_SUFFIXES
from mm_assets.formats.paired import PairedAddress
from mm_assets.formats.raw_shards import RawLocations
from mm_assets.formats.registry import detect_format, reader_for, writer_for
from mm_assets.storage.files import NoRegularFile, open_binary
from mm_assets.storage.listing import expand, expand_paths
from mm_assets_tests.formats.datasets import FORMATS, batch_of, item, write
from mm_assets_tests.formats.raw_tars import make_tar
from mm_assets_tests.formats.shelf import ShelfFileSystem
from mm_assets_tests.formats.special_files import special


def touch(root: Path, *names: str) -> None:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")


def names(found: list[str], root: Path) -> list[str]:
    return [os.path.relpath(name, root) for name in found]


class TestSpecialFiles:
    @special
    @pytest.mark.parametrize("where", ["", "/*", "/*.parquet", "/**", "/bad.parquet", "/{bad,good}.parquet"])
    def test_each_is_a_file_that_fails_alone(
        self, tmp_path: Path, make: Callable[[Path], None], words: str, where: str
    ) -> None:
        write("parquet", tmp_path / "good.parquet", batch_of([item("s")]))
        make(tmp_path / "bad.parquet")
        reader = reader_for("parquet", f"{tmp_path}{where}")
        bad = next(partition for partition in reader.partitions() if partition.name == "bad")
        with pytest.raises(NoRegularFile, match=rf"bad\.parquet: {words}, not a regular file"):
            reader.open(bad)
        for good in [partition for partition in reader.partitions() if partition.name == "good"]:
            assert [batch.num_samples for batch in reader.open(good)] == [1]

    @special
    def test_none_is_opened_as_a_tar(self, tmp_path: Path, make: Callable[[Path], None], words: str) -> None:
        make(tmp_path / "bad.tar")
        for quarantine_errors in (False, True):
            with pytest.raises(NoRegularFile, match=rf"bad\.tar: {words}"):
                list(reader_for("webdataset", str(tmp_path), quarantine_errors=quarantine_errors))

    @special
    def test_none_is_opened_as_metadata_of_a_cache(
        self, tmp_path: Path, make: Callable[[Path], None], words: str
    ) -> None:
        (tmp_path / "c").mkdir()
        make(tmp_path / "c" / "_metadata.json")
        with pytest.raises(ValueError, match=rf"_metadata\.json: {words}"):
            list(reader_for("arrow_cache", str(tmp_path)))

    @special
    def test_none_is_opened_at_all(self, tmp_path: Path, make: Callable[[Path], None], words: str) -> None:
        make(tmp_path / "x")
        with pytest.raises(NoRegularFile, match=words):
            open_binary(str(tmp_path / "x"))

    def test_a_pipe_is_no_lance_table(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "x.lance")
        with pytest.raises(FileNotFoundError, match="no Lance table here"):
            list(reader_for("lance", str(tmp_path / "x.lance")))


class TestFolders:
    def test_one_that_is_called_like_a_shard_and_holds_none_is_a_shard_that_fails(
        self, tmp_path: Path
    ) -> None:
        touch(tmp_path, "a.tar", "b.tar/readme", "c.tar/d.tar")
        for where in ("", "/*.tar", "/**/*.tar"):
            found = expand_paths(f"{tmp_path}{where}", TAR_SUFFIXES)
            assert names(found, tmp_path) == ["a.tar", "b.tar", "c.tar/d.tar"]
        with pytest.raises(FileNotFoundError, match=r"b\.tar: no \.tar/\.tar\.gz/\.tgz file in this folder"):
            expand_paths(str(tmp_path / "b.tar"), TAR_SUFFIXES)
        with pytest.raises(IsADirectoryError, match="a folder, not a file"):
            list(reader_for("webdataset", f"{tmp_path}/b*.tar"))

    def test_one_that_a_pattern_matches_gives_its_files(self, tmp_path: Path) -> None:
        touch(
            tmp_path,
            "2024/a.tar",
            "2025/x/b.tar",
            "logs/readme",
            "_ledger/c.tar",
            ".hidden/d.tar",
            "2025/.e.tar",
        )
        assert names(expand_paths(f"{tmp_path}/*", TAR_SUFFIXES), tmp_path) == ["2024/a.tar", "2025/x/b.tar"]
        assert names(expand_paths(str(tmp_path), TAR_SUFFIXES), tmp_path) == ["2024/a.tar", "2025/x/b.tar"]
        assert names(expand_paths(f"{tmp_path}/**/b.t?r", TAR_SUFFIXES), tmp_path) == ["2025/x/b.tar"]
        assert names(expand_paths(f"{tmp_path}/20{{24,25}}", TAR_SUFFIXES), tmp_path) == [
            "2024/a.tar",
            "2025/x/b.tar",
        ]


class TestLinks:
    def test_links_to_folders_are_followed(self, tmp_path: Path) -> None:
        touch(tmp_path, "elsewhere/a.tar", "elsewhere/deep/b.tar", "data/c.tar")
        (tmp_path / "data" / "link").symlink_to(tmp_path / "elsewhere")
        for where in ("data", "data/**", "data/{link,c.tar}"):
            found = expand(str(tmp_path / where), TAR_SUFFIXES)
            assert sorted(names(found.files, tmp_path / "data")) == ["c.tar", "link/a.tar", "link/deep/b.tar"]
            assert found.passed_over == []
        assert names(expand_paths(f"{tmp_path}/data/*/a.tar", TAR_SUFFIXES), tmp_path / "data") == [
            "link/a.tar"
        ]
        assert detect_format(str(tmp_path / "data")) == "webdataset"

    def test_a_linked_folder_alone_is_found(self, tmp_path: Path) -> None:
        write("parquet", tmp_path / "elsewhere", batch_of([item("s")], partition="p"))
        (tmp_path / "data").mkdir()
        (tmp_path / "data" / "link").symlink_to(tmp_path / "elsewhere")
        assert detect_format(str(tmp_path / "data")) == "parquet"
        assert [batch.num_samples for batch in reader_for("parquet", str(tmp_path / "data"))] == [1]

    def test_loops_end_and_no_folder_is_read_twice(self, tmp_path: Path) -> None:
        touch(tmp_path, "data/2024/a.tar", "data/b.tar", "other/c.tar", "other/sub/d.tar")
        (tmp_path / "data" / "latest").symlink_to("2024")
        (tmp_path / "data" / "self").symlink_to(".")
        (tmp_path / "data" / "2024" / "up").symlink_to("../..")
        (tmp_path / "data" / "other").symlink_to("../other")
        (tmp_path / "data" / "sub").symlink_to("../other/sub")
        (tmp_path / "other" / "back").symlink_to("../data")
        (tmp_path / "data" / "loop").symlink_to("loop")
        (tmp_path / "data" / "loop.tar").symlink_to("loop.tar")
        data = tmp_path / "data"
        found = expand(str(data), TAR_SUFFIXES)
        assert names(found.files, data) == [
            "2024/a.tar",
            "b.tar",
            "loop.tar",
            "other/c.tar",
            "other/sub/d.tar",
        ]
        cut = [
            f"{data}/{name}: a link to a folder above it, not followed"
            for name in ("2024/up", "other/back", "self")
        ]
        assert sorted(found.passed_over) == cut
        assert names(expand(f"{data}/lat*/*.tar", TAR_SUFFIXES).files, data) == [
            "latest/a.tar"
        ]  # by name it is what is meant

    def test_outputs_behind_a_link_are_no_raw_shards(self, tmp_path: Path) -> None:
        touch(tmp_path, "raw/a.tar", "storage/webdataset/b.tar")
        (tmp_path / "raw" / "out").symlink_to(tmp_path / "storage")
        assert list(RawLocations(str(tmp_path / "raw"), excluded=str(tmp_path / "storage")).shards()) == ["a"]
        (tmp_path / "alias").symlink_to(tmp_path / "storage")
        assert list(RawLocations(f"{tmp_path}/raw", excluded=str(tmp_path / "alias")).shards()) == ["a"]

    def test_lance_tables_behind_links(self, tmp_path: Path) -> None:
        write("lance", tmp_path / "elsewhere", batch_of([item("s")], partition="p"))
        (tmp_path / "a").mkdir()
        (tmp_path / "a" / "b").symlink_to(tmp_path / "elsewhere")
        for where in ("a/b", "a/*/items.lance", "a/b/items.lance"):
            assert [batch.num_samples for batch in reader_for("lance", str(tmp_path / where))] == [1]


class TestPackedTars:
    @pytest.mark.parametrize("suffix", [*PACKED_TAR_SUFFIXES, ".TAR.BZ2"])
    def test_each_is_named_beside_tars_that_are_read(self, tmp_path: Path, suffix: str) -> None:
        touch(tmp_path, "a.tar", f"b{suffix}")
        line = f"{tmp_path}/b{suffix}: a tar packed in a way that is not read: pack with gzip, or not at all"
        for where in ("", "/*", "/**"):
            found = expand(f"{tmp_path}{where}", TAR_SUFFIXES)
            assert (names(found.files, tmp_path), found.passed_over) == (["a.tar"], [line])
        with pytest.warns(UserWarning, match="b.*packed in a way that is not read"):
            expand_paths(str(tmp_path), TAR_SUFFIXES)
        with pytest.raises(FileNotFoundError) as caught:
            expand(f"{tmp_path}/b{suffix}", TAR_SUFFIXES)
        assert str(caught.value) == line

    def test_many_are_one_line(self, tmp_path: Path) -> None:
        touch(
            tmp_path,
            "a.tar.gz",
            "x/b.tar.xz",
            "x/c.tbz2",
            "x/notes.xz",
            "x/d.tar.idx",
            "x/e.tar.md5",
            "x/.f.tar.xz",
        )
        found = expand(str(tmp_path), TAR_SUFFIXES)
        assert found.passed_over == [
            f"{tmp_path}: 2 tars, the first of them {tmp_path}/x/b.tar.xz, packed in a way that is "
            f"not read: pack with gzip, or not at all"
        ]
        assert (
            expand(str(tmp_path), (".tar.gz",)).passed_over == []
        )  # who asks for something else is told of nothing

    def test_where_there_is_nothing_else_they_are_the_reason(self, tmp_path: Path) -> None:
        touch(tmp_path, "b.tar.zst")
        said = "packed in a way that is not read"
        for where in (tmp_path, f"{tmp_path}/*", tmp_path / "b.tar.zst"):
            with pytest.raises((FileNotFoundError, ValueError), match=said):
                detect_format(str(where))
            with pytest.raises(FileNotFoundError, match=said):
                expand_paths(str(where), TAR_SUFFIXES)
            with pytest.raises(FileNotFoundError, match=f"^no raw shards: .*{said}"):
                RawLocations(str(where)).shards()

    @pytest.mark.parametrize("where", ["", "/*", "/b.tar.bz2 {raw}/a.tar", "/{{a.tar,b.tar.bz2}}"])
    def test_raw_shards_tell_of_them(self, tmp_path: Path, where: str) -> None:
        touch(tmp_path, "a.tar", "b.tar.bz2")
        listing = RawLocations(f"{tmp_path}{where.format(raw=tmp_path)}").shards()
        assert list(listing) == ["a"]
        assert listing.unmatched == (
            f"{tmp_path}/b.tar.bz2: a tar packed in a way that is not read: pack with gzip, or not at all",
        )

    def test_beside_modalities_in_separate_tars(self, tmp_path: Path) -> None:
        for modality in ("images", "texts"):
            make_tar(tmp_path / modality / "a.tar", [("k.txt", b"t")])
        touch(tmp_path, "texts/b.tar.xz")
        text = f"images={tmp_path}/images texts={tmp_path}/texts"
        assert RawLocations(text).shards().unmatched == (
            f"{tmp_path}/texts/b.tar.xz: a tar packed in a way that is not read: pack with gzip, or "
            f"not at all",
        )

    def test_behind_a_url(self, tmp_path: Path) -> None:
        touch(tmp_path, "a.tar", "b.tar.bz2")
        url = f"{ShelfFileSystem.protocol}://{tmp_path}"
        found = expand(url, TAR_SUFFIXES)
        assert found.files == [f"{url}/a.tar"]
        assert found.passed_over == [
            f"{url}/b.tar.bz2: a tar packed in a way that is not read: pack with gzip, or not at all"
        ]


class TestModalities:
    @special
    def test_a_special_file_fails_its_own_shard(
        self, tmp_path: Path, make: Callable[[Path], None], words: str
    ) -> None:
        for modality in ("images", "texts"):
            make_tar(tmp_path / modality / "good.tar", [("k.txt", b"t")])
        make_tar(tmp_path / "images" / "bad.tar", [("k.txt", b"t")])
        make(tmp_path / "texts" / "bad.tar")
        url = PairedAddress({name: str(tmp_path / name) for name in ("images", "texts")}).url
        reader = reader_for("webdataset", url)
        bad, good = reader.partitions()
        with pytest.raises(NoRegularFile, match=f"texts/bad.tar: {words}"):
            reader.open(bad)
        assert reader.open(good).items


@pytest.mark.parametrize("kind", FORMATS)
def test_a_local_url_is_a_path(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one with a percent sign, which stands for itself: files of ours have them in their names."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "a%20b c"
    write(kind, f"file://{folder}", batch_of([item("s", 0, text_content="t")], partition="x.y"))
    assert folder.is_dir() and os.listdir(tmp_path) == [folder.name]
    file = os.path.relpath(writer_for(kind, str(folder)).file_of("x.y"), folder)
    for place in (
        f"file://{folder}",
        f"file://localhost{folder}",
        f"local://{folder}",
        f"file:{folder}",
        f"file://{folder}/{file}",
    ):
        assert detect_format(place) == kind
        reader = reader_for(kind, place)
        assert [(partition.name, reader.open(partition).items) for partition in reader.partitions()] == [
            ("x.y", 1)
        ]
    with pytest.raises(FileNotFoundError):
        detect_format(f"file://{tmp_path}/a%2520b c")


@pytest.mark.parametrize(
    ("url", "typed"),
    [("pdf://docs/a.tar", "pdf=FOLDER"), ("paired://docs/a.tar", "MODALITY=FOLDER")],
)
def test_a_path_behind_a_scheme_of_ours_is_told_how_to_be_named(url: str, typed: str) -> None:
    with pytest.raises(ValueError) as refused:
        list(reader_for("webdataset", url))
    assert str(refused.value) == f"{url.rpartition('/')[0]}: no location: it is named as {typed}"
