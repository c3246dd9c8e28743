"""Which members make which sample: webdataset's rules, and what it would lose is an error or counted."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import Any

import pytest
import webdataset as wds

from mm_assets_tests.formats.paired.shards import keys_of, paired, write_pair, write_shard
from mm_assets_tests.formats.raw_tars import make_tar


def special(path: Path, *infos: tarfile.TarInfo, **members: bytes) -> str:
    """A tar of plain members and of others that have no bytes."""
    with tarfile.open(path, "w") as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(name.replace("__", "."))
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
        for info in infos:
            tar.addfile(info)
    return str(path)


def link(name: str, target: str, kind: bytes) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def without_urls(samples: Any) -> list[dict[str, Any]]:
    return [
        {key: value for key, value in sample.items() if not key.startswith("__") or key == "__key__"}
        for sample in samples
    ]


@pytest.mark.parametrize("kind", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_one_modality_is_webdataset(kind: int, tmp_path: Path) -> None:
    names = [
        "a.jpg",
        "a.seg.PNG",
        "a.json",
        "b.JPG",
        "dir.v1/sub/c.txt",
        "dir.v1/sub/d.e.f.txt",
        "x" * 150 + ".txt",
        "é ß.txt",
        "end..txt",
        "no_extension",
        ".hidden.txt",
        "__meta__.json",
        "__meta__/k.txt",
        "__x__k.txt",
        "dir/__meta__/k.txt",
        "__x/y__.txt",
        "z.",
    ]
    path = make_tar(tmp_path / "s.tar", [(name, name.encode()) for name in names], kind=kind)
    ds = paired({"only": str(path)})
    assert without_urls(ds) == without_urls(wds.WebDataset(str(path), shardshuffle=False))
    assert ds.reports[0].unkeyed["only"].first == ["no_extension", ".hidden.txt"]


def test_a_leading_dot_is_no_folder(tmp_path: Path) -> None:
    images = make_tar(tmp_path / "i" / "s.tar", [("./a.jpg", b"1"), ("././b.jpg", b"2")])
    captions = make_tar(tmp_path / "c" / "s.tar", [("a.txt", b"3"), ("b.txt", b"4")])
    assert keys_of(paired({"i": str(images), "c": str(captions)})) == ["a", "b"]


def test_members_of_a_key_need_not_be_neighbours(tmp_path: Path) -> None:
    path = make_tar(tmp_path / "s.tar", [("a.jpg", b"1"), ("b.jpg", b"2"), ("a.cls", b"3"), ("b.cls", b"4")])
    assert without_urls(paired({"s": str(path)})) == [
        {"__key__": "a", "jpg": b"1", "cls": b"3"},
        {"__key__": "b", "jpg": b"2", "cls": b"4"},
    ]


def test_payloads_of_any_size(tmp_path: Path) -> None:
    payloads = {f"{n}.bin": bytes([n]) * size for n, size in enumerate((0, 1, 511, 512, 513, 3 << 20))}
    path = make_tar(tmp_path / "s.tar", payloads.items())
    assert [sample["bin"] for sample in paired({"s": str(path)})] == list(payloads.values())


def test_equal_extensions_collide(tmp_path: Path) -> None:
    english = make_tar(tmp_path / "en" / "s.tar", [("a.json", b"{}"), ("a.txt", b"hello")])
    french = make_tar(tmp_path / "fr" / "s.tar", [("a.txt", b"bonjour")])
    modalities = {"captions_en": str(english), "captions_fr": str(french)}
    with pytest.raises(
        ValueError, match="^extension key 'txt' from modality 'captions_fr' collides"
    ) as caught:
        list(paired(modalities))
    assert str(french) in caught.value.__notes__[0]

    renamed = paired(modalities, rename_files={"captions_fr": lambda name: name.replace(".txt", ".fr.txt")})
    assert without_urls(renamed) == [{"__key__": "a", "json": b"{}", "txt": b"hello", "fr.txt": b"bonjour"}]


def test_extensions_of_different_samples_do_not_collide(tmp_path: Path) -> None:
    one = make_tar(tmp_path / "1" / "s.tar", [("a.txt", b"1"), ("b.jpg", b"2"), ("x.png", b"3")])
    two = make_tar(
        tmp_path / "2" / "s.tar", [("a.jpg", b"4"), ("b.txt", b"5"), ("y.png", b"6"), ("y.TXT", b"7")]
    )
    modalities = {"one": str(one), "two": str(two)}
    assert keys_of(paired(modalities, missing_key_policy="partial")) == ["a", "b", "x", "y"]


def test_samples_that_are_skipped_do_not_collide(tmp_path: Path) -> None:
    txt = [
        str(make_tar(tmp_path / name / "s.tar", [(f"a.{name}", b""), ("b.txt", b"")]))
        for name in ("json", "txt")
    ]
    jpg = make_tar(tmp_path / "jpg" / "s.tar", [("a.jpg", b"")])
    assert keys_of(paired({"one": txt[0], "two": txt[1], "three": str(jpg)})) == ["a"]


def test_rename_files_sees_all_names_and_select_files_the_new_ones(tmp_path: Path) -> None:
    images = make_tar(
        tmp_path / "img" / "s.tar", [("img/1.jpg", b"1"), ("img/1.cls", b"no"), ("img/2.jpg", b"2")]
    )
    captions = make_tar(tmp_path / "txt" / "s.tar", [("txt/2.txt", b"two"), ("txt/1.txt", b"one")])
    modalities = {"images": str(images), "captions": str(captions)}

    with pytest.raises(
        ValueError, match=r"No samples found in dataset: all 1 shard groups.* no key in common \(rename_files"
    ):
        list(paired(modalities))
    ds = paired(
        modalities,
        rename_files=lambda name: name.partition("/")[2],
        select_files=lambda name: name in ("1.jpg", "1.txt"),
    )
    assert without_urls(ds) == [{"__key__": "1", "jpg": b"1", "txt": b"one"}]
    ds = paired(
        modalities,
        rename_files=lambda name: name.partition("/")[2],
        select_files={"images": lambda name: name.endswith("jpg")},
    )
    assert without_urls(ds) == [
        {"__key__": "1", "jpg": b"1", "txt": b"one"},
        {"__key__": "2", "jpg": b"2", "txt": b"two"},
    ]


def test_a_function_for_no_modality_is_refused(tmp_path: Path) -> None:
    urls = write_pair(tmp_path, images="a", embeddings="a")
    for argument in ("rename_files", "select_files"):
        with pytest.raises(
            ValueError,
            match=r"functions for \['captions'\], which are none of the modalities \['images', "
            r"'embeddings'\]",
        ):
            list(paired(urls, **{argument: {"images": str, "captions": str}}))


@pytest.mark.parametrize("names", [("a.jpg", "b.jpg", "a.jpg"), ("a.jpg", "a.JPG")])
def test_a_key_that_has_an_extension_twice_is_refused(names: tuple[str, ...], tmp_path: Path) -> None:
    path = make_tar(tmp_path / "s.tar", [(name, b"") for name in names])
    with pytest.raises(ValueError, match="duplicate file name in tar file: key 'a' has 'jpg' twice"):
        list(paired({"s": str(path)}))
    assert keys_of(
        paired({"s": str(path)}, select_files=lambda name: name != "a.jpg", empty_check=False)
    ) in (["b"], ["a"])


@pytest.mark.parametrize(
    "extension", ["__key__", "__url__", "__url_s__", "__local_path__", "__bad__", "__BAD__"]
)
def test_a_member_cannot_take_the_place_of_metadata(extension: str, tmp_path: Path) -> None:
    path = make_tar(tmp_path / "s.tar", [("a.jpg", b""), (f"a.{extension}", b"/etc/passwd")])
    with pytest.raises(ValueError, match="webdataset keeps names like"):
        list(paired({"s": str(path)}))


def test_links_inside_the_tar_are_followed(tmp_path: Path) -> None:
    path = special(
        tmp_path / "s.tar",
        link("b.jpg", "a.jpg", tarfile.LNKTYPE),
        link("c.jpg", "b.jpg", tarfile.SYMTYPE),
        a__jpg=b"1",
    )
    assert [sample["jpg"] for sample in paired({"s": path})] == [b"1"] * 3


@pytest.mark.parametrize("target", ["/etc/passwd", "../../etc/passwd", "absent.jpg"])
def test_links_never_leave_the_tar(target: str, tmp_path: Path) -> None:
    path = special(tmp_path / "s.tar", link("b.jpg", target, tarfile.SYMTYPE), a__jpg=b"1")
    with pytest.raises(ValueError, match=r"member 'b.jpg' cannot be read: links to"):
        list(paired({"s": path}))
    assert keys_of(paired({"s": path}, select_files=lambda name: name != "b.jpg")) == ["a"]


def test_names_that_are_paths_open_nothing(tmp_path: Path) -> None:
    path = make_tar(tmp_path / "s.tar", [("/etc/passwd.txt", b"1"), ("../x.txt", b"2")])
    assert without_urls(paired({"s": str(path)})) == [
        {"__key__": "/etc/passwd", "txt": b"1"},
        {"__key__": "../x", "txt": b"2"},
    ]
    assert list(tmp_path.iterdir()) == [path]


def test_devices_are_counted(tmp_path: Path) -> None:
    path = special(tmp_path / "s.tar", link("tty.x", "", tarfile.CHRTYPE), a__jpg=b"1")
    ds = paired({"s": path})
    assert keys_of(ds) == ["a"]
    assert ds.reports[0].unkeyed["s"].first == ["tty.x (a character device: not read as a file)"]


def test_an_empty_tar_has_no_samples(tmp_path: Path) -> None:
    urls = write_pair(tmp_path, images="", embeddings="")
    assert list(paired(urls, empty_check=False)) == []
    with pytest.raises(ValueError, match="No samples found in dataset: all 1 shard groups are empty"):
        list(paired(urls))


def test_url_fields_name_their_modality(tmp_path: Path) -> None:
    urls = {"image s": write_shard(tmp_path, "images", "a"), "url": write_shard(tmp_path, "captions", "a")}
    (sample,) = paired(urls)
    assert (sample["__url_image s__"], sample["__url_url__"]) == tuple(urls.values())
    assert sample["__url__"] == " ".join(urls.values())
