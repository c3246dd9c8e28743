from __future__ import annotations

import gzip
import io
import os
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mm_assets.formats.tar.scan import Ambiguous, Member, TarDamage, TarIndex, read_members, scan
from mm_assets.formats.tar.spool import local_tar
from mm_assets_tests.formats.tar.raw_headers import END, header, pax, record

PAYLOADS = [bytes([65 + i]) * size for i, size in enumerate((700, 512, 0, 1, 513, 1024, 3000, 40))]
NAMES = [f"doc-{i:03d}.{i}.jpg" for i in range(len(PAYLOADS))]


def make(
    entries: list[tarfile.TarInfo], bodies: list[bytes], tar_format: int = tarfile.USTAR_FORMAT
) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tar_format) as tar:
        for entry, body in zip(entries, bodies, strict=True):
            entry.size = len(body)
            tar.addfile(entry, io.BytesIO(body))
    return out.getvalue()


def regular(names: list[str], tar_format: int = tarfile.USTAR_FORMAT) -> bytes:
    return make([tarfile.TarInfo(n) for n in names], PAYLOADS[: len(names)], tar_format)


def scan_bytes(data: bytes, tmp_path: Path) -> TarIndex:
    path = tmp_path / "x.tar"
    path.write_bytes(data)
    with open(path, "rb") as file:
        return scan(file.fileno(), "shard-7.tar")


def refuse(data: bytes, tmp_path: Path, match: str) -> str:
    with pytest.raises(TarDamage, match=match) as caught:
        scan_bytes(data, tmp_path)
    assert str(caught.value).startswith("shard-7.tar: byte ")
    return str(caught.value)


def expected(data: bytes) -> list[tuple[str, int, int, int]]:
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        return [(m.name, m.offset_data, m.size, m.offset) for m in tar if m.isreg()]


def found(index: TarIndex) -> list[tuple[str, int, int, int]]:
    return [(m.name, m.offset, m.size, m.header_offset) for m in index.members]


@pytest.mark.parametrize("tar_format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_same_members_as_tarfile(tar_format: int, tmp_path: Path) -> None:
    data = regular(NAMES, tar_format)
    index = scan_bytes(data, tmp_path)
    assert found(index) == expected(data)
    assert [data[m.offset : m.offset + m.size] for m in index.members] == PAYLOADS
    assert index.end == len(data.rstrip(b"\0")) // 512 * 512 + 512
    assert index.skipped == [] and list(index.by_name) == NAMES


name_characters = st.characters(blacklist_categories=["Cs"], blacklist_characters="\0/")
names = st.lists(
    st.text(name_characters, min_size=1, max_size=60).filter(lambda s: s not in (".", "..")),
    min_size=1,
    max_size=6,
).map("/".join)


@given(st.lists(st.tuples(names, st.binary(max_size=1500)), max_size=8), st.sampled_from([1, 2]))
def test_random_tars_equal_tarfile(
    tmp_path_factory: pytest.TempPathFactory, members: list[tuple[str, bytes]], tar_format: int
) -> None:
    data = make([tarfile.TarInfo(n) for n, _ in members], [b for _, b in members], tar_format)
    index = scan_bytes(data, tmp_path_factory.mktemp("random"))
    assert found(index) == expected(data)
    assert [data[m.offset : m.offset + m.size] for m in index.members] == [b for _, b in members]
    assert all(m.broken is None and m.link is None for m in index.members)


def fits_ustar(name: str) -> bool:
    try:
        tarfile.TarInfo(name).tobuf(tarfile.USTAR_FORMAT)
    except ValueError:
        return False
    return not name.startswith("./")


ascii_names = st.lists(st.text("abcXYZ0189._-% ", min_size=1, max_size=40), min_size=1, max_size=6).map(
    "/".join
)


@given(st.lists(ascii_names.filter(fits_ustar), max_size=8))
def test_random_ustar_prefixes_equal_tarfile(
    tmp_path_factory: pytest.TempPathFactory, names: list[str]
) -> None:
    data = make([tarfile.TarInfo(n) for n in names], [n.encode() for n in names])
    assert found(scan_bytes(data, tmp_path_factory.mktemp("ustar"))) == expected(data)


# What each kind of damage is called (formats.md 2.2, and more)


@pytest.mark.parametrize("tar_format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_every_flipped_header_bit_is_detected_or_harmless(tar_format: int, tmp_path: Path) -> None:
    names = [*NAMES[:4], "é" * 70 + ".jpg", *NAMES[5:]] if tar_format != tarfile.USTAR_FORMAT else NAMES
    data = regular(names, tar_format)
    whole = scan_bytes(data, tmp_path)
    member = whole.members[4]
    harmless = 0
    path = tmp_path / "flip.tar"
    path.write_bytes(data)
    with open(path, "r+b", buffering=0) as file:
        main_header = member.offset - 512
        positions = [
            *range(member.header_offset, member.header_offset + 512),
            *range(main_header, main_header + 512),
        ]
        for at in positions:
            for bit in range(8):
                os.pwrite(file.fileno(), bytes([data[at] ^ (1 << bit)]), at)
                try:
                    index = scan(file.fileno(), "shard-7.tar")
                except TarDamage:
                    pass
                else:
                    assert index == TarIndex("shard-7.tar", whole.members, whole.by_name, [], whole.end)
                    assert 148 <= (at % 512) < 156, "only the checksum field has spare bits"
                    harmless += 1
                os.pwrite(file.fileno(), data[at : at + 1], at)
    assert harmless < 8 * 8 * 2


def test_every_cut_is_detected(tmp_path: Path) -> None:
    data = regular(NAMES)
    complete = len(data.rstrip(b"\0")) // 512 * 512 + 512 + 1024
    path = tmp_path / "cut.tar"
    for length in sorted({*range(0, complete, 512), *range(1, complete, 77), complete - 1}):
        path.write_bytes(data[:length])
        with open(path, "rb") as file, pytest.raises(TarDamage):
            scan(file.fileno(), "cut.tar")
    for length in (complete, complete + 1, complete + 512, len(data)):
        assert found(scan_bytes(data[:length], tmp_path)) == expected(data)


@pytest.mark.parametrize("tail", [b"", bytes(1), bytes(512), bytes(9999), bytes(200_000)])
def test_any_length_of_zeros_may_follow(tail: bytes, tmp_path: Path) -> None:
    assert scan_bytes(END + tail, tmp_path).members == []


DAMAGE: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "empty file": (lambda d: b"", "byte 0: the file is empty"),
    "cut at a member boundary": (lambda d: d[: 4 * 512 + 1024], "end blocks are missing"),
    "cut in a header": (lambda d: d[: 1536 + 100], "cut within a header, after 100 bytes"),
    "cut in a payload": (
        lambda d: d[: 512 + 600],
        "700 bytes of 'doc-000.0.jpg' and their padding end at 1536",
    ),
    "cut in the padding": (lambda d: d[: 512 + 700], "and their padding end at 1536, the file at 1212"),
    "one end block": (
        lambda d: d.rstrip(b"\0") + bytes(-len(d.rstrip(b"\0")) % 512 + 512),
        "512 of at least 1024",
    ),
    "header zeroed": (lambda d: d[:1536] + bytes(512) + d[2048:], "byte 2048: data after the end"),
    "two zero blocks inside": (lambda d: d[:1536] + bytes(1024) + d[1536:], "byte 2560: data after the end"),
    "two tars": (lambda d: d + d, "byte 20480: data after the end"),
    "late byte": (lambda d: d + bytes(100_000) + b"x", "byte 120480: data after the end"),
    "junk instead of a header": (
        lambda d: d[:1536] + b"j" * 512 + d[2048:],
        "byte 1536: header checksum mismatch",
    ),
    "gzip": (lambda d: gzip.compress(os.urandom(600)), "is gzip"),
    "no tar": (lambda d: b"<html>" * 200, "byte 0: header checksum mismatch: the file is no tar, or damaged"),
    "no tar, and short": (
        lambda d: b"Not Found",
        "byte 0: cut within a header, after 9 bytes: the file is no tar, or damaged",
    ),
    "sparse": (lambda d: header(b"s", 512, b"S") + bytes(512) + END, "sparse member 's'"),
    "volume": (lambda d: header(b"s", 0, b"M") + END, "another volume"),
    "size beyond the file": (lambda d: header(b"s", 8**11 - 1) + END, "8589934591 bytes"),
    "size of no digits": (lambda d: header(b"s", 0, at_124=b"-0000000001\0") + END, "is not a size"),
    "underscored size": (lambda d: header(b"s", 0, at_124=b"0000000_001\0") + END, "is not a size"),
    "decimal size": (lambda d: header(b"s", 0, at_124=b"00000000009\0") + END, "is not a size"),
    "negative size": (lambda d: header(b"s", 0, at_124=b"\xff" * 12) + END, "is not a size"),
    "endless size": (lambda d: header(b"s", 0, at_124=b"\x80" + b"\xff" * 11) + END, "and their padding end"),
    "long name without member": (
        lambda d: header(b"l", 4, b"L") + b"name" + bytes(508) + END,
        "without its member",
    ),
    "long name beyond the file": (lambda d: header(b"l", 5000, b"L") + END, "beyond the end"),
    "huge long name": (
        lambda d: header(b"l", (1 << 20) + 1, b"L") + bytes(1 << 21) + END,
        "1048577 bytes; at most",
    ),
    "huge pax": (lambda d: header(b"l", 8**11 - 1, b"x") + END, "at most"),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_damage_is_an_error(case: str, tmp_path: Path) -> None:
    make_damage, match = DAMAGE[case]
    refuse(make_damage(regular(NAMES)), tmp_path, match)


@pytest.mark.parametrize(
    "block",
    [
        b"99 path=a\n",
        b"9 path=ab\n",
        b"0 path=a\n",
        b"x path=a\n",
        b"10 pathxab\n",
        b"path=a\n",
        b"-9 path=a\n",
        b"10 path=ab\n\0junk",
        record("size", "-1"),
        record("size", "1e3"),
        record("size", "9" * 5000),
        record("GNU.sparse.major", "1"),
        record("SCHILY.realsize", "1"),
    ],
)
def test_pax_records_that_do_not_add_up(block: bytes, tmp_path: Path) -> None:
    refuse(pax(block) + header(b"m", 0) + END, tmp_path, "PAX|sparse")


def test_pax_values_of_a_member_and_global(tmp_path: Path) -> None:
    long_name = "é/" * 300 + "a.jpg"
    data = (
        pax(record("path", "everywhere"), record("comment", "c" * 700), kind=b"g")
        + pax(record("mtime", "1.5"), record("path", long_name), record("size", "3"))
        + (header(b"short", 0) + b"abc".ljust(512, b"\0"))
        + (header(b"m2", 0))
        + pax(record("path", ""))
        + (header(b"m3", 0))
        + END
    )
    index = scan_bytes(data, tmp_path)
    assert [m.name for m in index.members] == [long_name, "everywhere", "m3"]
    first = index.members[0]
    assert data[first.offset : first.offset + first.size] == b"abc"
    assert data[first.header_offset : first.header_offset + 3] == b"pax"


def test_contradicting_extended_headers_are_refused(tmp_path: Path) -> None:
    long = header(b"l", 4, b"L") + b"one\0" + bytes(508)
    refuse(long + pax(record("path", "two")) + header(b"m", 0) + END, tmp_path, "contradict")
    refuse(pax(record("path", "a")) * 2 + header(b"m", 0) + END, tmp_path, "contradict")
    assert (
        scan_bytes(long + pax(record("path", "one")) + header(b"m", 0) + END, tmp_path).members[0].name
        == "one"
    )


# Kinds of members and headers


def test_sizes_in_base_256_and_old_headers(tmp_path: Path) -> None:
    old = header(b"old", 3, b"\0", at_257=bytes(255)) + b"abc" + bytes(509)
    big = header(b"big", 0, at_124=b"\x80" + (600).to_bytes(11, "big")) + b"d" * 600 + bytes(424)
    spaces = header(b"spaces", 0, at_124=b"        3 \0 ") + b"xyz" + bytes(509)
    full = header(b"full", 0, at_124=b"000000000003") + b"uvw" + bytes(509)
    contiguous = header(b"cont", 1, b"7") + b"7" + bytes(511)
    folder = header(b"dir/", 0, b"\0", at_257=bytes(255)) + header(b"dir2", 4096, b"5")
    data = old + big + folder + spaces + full + contiguous + END
    index = scan_bytes(data, tmp_path)
    contents = {m.name: data[m.offset : m.offset + m.size] for m in index.members}
    assert contents == {"old": b"abc", "big": b"d" * 600, "spaces": b"xyz", "full": b"uvw", "cont": b"7"}
    assert index.skipped == []


def test_signed_checksums_and_gnu_times(tmp_path: Path) -> None:
    raw = bytearray(header("é.jpg".encode(), 0))
    signed = sum(b - 256 if b > 127 else b for b in raw[:148] + raw[156:]) + 256
    raw[148:156] = b"%06o\0 " % signed
    assert scan_bytes(bytes(raw) + END, tmp_path).members[0].name == "é.jpg"
    raw[148:156] = b"%06o\0 " % (signed + 1)
    refuse(bytes(raw) + END, tmp_path, "checksum")
    times = header(b"a", 0, at_257=b"ustar  \0", at_345=b"14371042105\0")
    star = header(b"b", 0, at_345=b"p" * 131 + b"14371042105\0", at_508=b"tar\0")
    names = [m.name for m in scan_bytes(times + star + END, tmp_path).members]
    assert names == ["a", "p" * 131 + "/b"]


def test_a_checksum_off_by_adlers_modulus_is_no_match(tmp_path: Path) -> None:
    raw = bytearray(header(b"\x7f" * 100, 0, at_157=b"\x7f" * 100, at_265=b"\x7f" * 64, at_345=b"\x7f" * 155))
    right = int(bytes(raw[148:154]), 8)
    assert scan_bytes(bytes(raw) + END, tmp_path).members[0].size == 0
    raw[148:156] = b"%06o\0 " % (right + 65521)
    refuse(bytes(raw) + END, tmp_path, "checksum")


def test_other_kinds_are_recorded_not_read(tmp_path: Path) -> None:
    kinds = header(b"fifo", 9, b"6") + header(b"c", 9, b"3") + header(b"b", 9, b"4") + header(b"vol", 0, b"V")
    dump = header(b"dump", 3, b"D") + b"abc" + bytes(509)
    index = scan_bytes(kinds + dump + header(b"m", 0) + END, tmp_path)
    assert [(s.name, s.kind) for s in index.skipped] == [
        ("fifo", "6"),
        ("c", "3"),
        ("b", "4"),
        ("vol", "V"),
        ("dump", "D"),
    ]
    assert [m.name for m in index.members] == ["m"]


def test_a_type_that_nobody_knows_is_a_file(tmp_path: Path) -> None:
    special = b"\0" + b"0123456DVSMxXgLK"
    for kind in sorted(set(range(256)) - set(special)):
        data = header(b"m/", 3, bytes([kind])) + b"abc" + bytes(509) + header(b"n", 0) + END
        index = scan_bytes(data, tmp_path)
        assert ([(m.name, m.offset, m.size) for m in index.members], index.skipped) == (
            [("m/", 512, 3), ("n", 1536, 0)],
            [],
        ), kind


def test_names_are_normalised_and_doubtful_ones_marked(tmp_path: Path) -> None:
    data = header(b"./a", 0) + header(b"././/b/c", 0) + header(b"caf\xe9.jpg", 0) + header(b"", 0)
    data += pax(record("path", b"n\0l")) + header(b"x", 0) + header(b".hidden", 0) + END
    members = scan_bytes(data, tmp_path).members
    assert [m.name for m in members] == ["a", "b/c", "caf\\xe9.jpg", "", "n\0l", ".hidden"]
    assert [m.broken and m.broken[:22] for m in members] == [
        *[None, None, "the name is not UTF-8:", "the name is empty", "the name holds a NUL", None],
    ]
    for member in members:
        member.name.encode()


def test_a_name_that_occurs_twice_is_ambiguous(tmp_path: Path) -> None:
    data = make([tarfile.TarInfo(n) for n in ("a", "b", "./a", "a")], [b"1", b"2", b"3", b"4"])
    index = scan_bytes(data, tmp_path)
    twice = index.by_name["a"]
    assert isinstance(twice, Ambiguous)
    assert [data[m.offset : m.offset + 1] for m in twice.members] == [b"1", b"3", b"4"]
    assert isinstance(index.by_name["b"], Member) and len(index.members) == 4


# Links


def link(name: str, target: str, kind: bytes) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info, b""


LINKS = [
    ("hard", "d/a.jpg", tarfile.LNKTYPE, "d/a.jpg"),
    ("hard-dot", "./d/a.jpg", tarfile.LNKTYPE, "d/a.jpg"),
    ("d/near", "a.jpg", tarfile.SYMTYPE, "d/a.jpg"),
    ("e/far", "../d/./a.jpg", tarfile.SYMTYPE, "d/a.jpg"),
    ("chain", "e/far", tarfile.SYMTYPE, "d/a.jpg"),
    ("forward", "late.jpg", tarfile.SYMTYPE, "late.jpg"),
    ("long", "d/" + "l" * 150, tarfile.SYMTYPE, "d/" + "l" * 150),
    ("loop1", "loop2", tarfile.SYMTYPE, "back to itself"),
    ("loop2", "loop1", tarfile.SYMTYPE, "back to itself"),
    ("self", "self", tarfile.LNKTYPE, "back to itself"),
    ("to-loop", "loop1", tarfile.SYMTYPE, "back to itself"),
    ("out", "../../etc/passwd", tarfile.SYMTYPE, "outside the tar"),
    ("absolute", "/etc/passwd", tarfile.SYMTYPE, "outside the tar"),
    ("missing", "nowhere", tarfile.LNKTYPE, "no file of this tar"),
    ("to-missing", "missing", tarfile.SYMTYPE, "no file of this tar"),
    ("to-twice", "twice", tarfile.LNKTYPE, "occurs 2 times"),
    ("empty", "", tarfile.LNKTYPE, "the name is empty"),
]


@pytest.mark.parametrize("tar_format", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_links_lead_to_a_payload_or_say_why_not(tar_format: int, tmp_path: Path) -> None:
    entries = [(tarfile.TarInfo(n), n.encode()) for n in ("d/a.jpg", "d/" + "l" * 150, "twice", "twice")]
    entries += [link(*case[:3]) for case in LINKS] + [(tarfile.TarInfo("late.jpg"), b"late.jpg")]
    data = make([e for e, _ in entries], [b for _, b in entries], tar_format)
    index = scan_bytes(data, tmp_path)
    for name, _, _, outcome in LINKS:
        member = index.by_name[name]
        assert isinstance(member, Member) and member.link is not None
        if member.broken is None:
            assert (member.link, data[member.offset : member.offset + member.size]) == (
                outcome,
                outcome.encode(),
            )
        else:
            assert outcome in member.broken and (member.offset, member.size) == (-1, 0)
    assert [m.name for m in index.members] == [e.name for e, _ in entries]


def test_a_link_with_the_size_of_its_target_has_no_body(tmp_path: Path) -> None:
    data = header(b"a", 3) + b"abc" + bytes(509) + header(b"h", 3, b"1", at_157=b"a") + header(b"z", 0) + END
    index = scan_bytes(data, tmp_path)
    assert [(m.name, m.offset, m.size) for m in index.members] == [
        ("a", 512, 3),
        ("h", 512, 3),
        ("z", 2048, 0),
    ]


def test_long_chains_of_links_take_linear_time(tmp_path: Path) -> None:
    parts = [header(b"%d" % i, 0, b"2", at_157=b"%d" % (i + 1)) for i in range(20_000)]
    index = scan_bytes(b"".join(parts) + header(b"20000", 0) + END, tmp_path)
    assert {m.link for m in index.members[:-1]} == {"20000"}


# Payloads


def test_read_members_fills_the_buffer_in_order(tmp_path: Path) -> None:
    data = regular(NAMES)
    index = scan_bytes(data, tmp_path)
    wanted = [index.members[i] for i in (6, 0, 2, 7, 1)]
    with open(tmp_path / "x.tar", "rb") as file:
        buffer = bytearray(b"\xee" * 5000)
        total = read_members(file.fileno(), wanted, memoryview(buffer))
        assert bytes(buffer[:total]) == b"".join(PAYLOADS[i] for i in (6, 0, 2, 7, 1))
        assert set(buffer[total:]) == {0xEE}
        with pytest.raises(ValueError, match="do not fit"):
            read_members(file.fileno(), wanted, memoryview(bytearray(total - 1)))
        broken = wanted[0]._replace(broken="links to nowhere")
        with pytest.raises(ValueError, match="cannot be read: links to nowhere"):
            read_members(file.fileno(), [broken], memoryview(buffer))
        os.truncate(tmp_path / "x.tar", wanted[0].offset + 10)
        with pytest.raises(
            TarDamage, match=r"x.tar: byte \d+: the file ends 2990 bytes before the end of 'doc-006"
        ):
            read_members(file.fileno(), wanted, memoryview(buffer), "x.tar")


# Spooling


def spooled(source: str | os.PathLike[str] | io.BytesIO, max_bytes: int | None = None) -> bytes:
    with local_tar(source, "s.tar.gz", max_bytes=max_bytes) as fd:
        return os.pread(fd, 1 << 26, 0)


class Trickle(io.BytesIO):
    def read(self, size: int | None = -1, /) -> bytes:
        return super().read(1 if self.tell() < 20 else 1000)


@pytest.mark.parametrize("wrap", [io.BytesIO, Trickle])
def test_streams_and_gzip_become_a_local_tar(wrap: Callable[[bytes], io.BytesIO], tmp_path: Path) -> None:
    data = regular(NAMES) + bytes(3 << 20)
    half = len(data) // 2
    members = (
        gzip.compress(data[:half]) + gzip.compress(b"") + bytes(700) + gzip.compress(data[half:]) + bytes(512)
    )
    for packed in (data, gzip.compress(data), members):
        assert spooled(wrap(packed)) == data
        path = tmp_path / "local"
        path.write_bytes(packed)
        assert spooled(path) == data
    assert spooled(io.BytesIO(b"")) == b"" and spooled(io.BytesIO(b"\x1f")) == b"\x1f"


def test_random_gzip_pieces_survive_block_edges() -> None:
    pieces = [os.urandom(n) for n in (1, 65_535, 65_536, 1 << 20, 3, 700_000)] + [bytes(5 << 20)]
    assert spooled(io.BytesIO(b"".join(map(gzip.compress, pieces)))) == b"".join(pieces)


def test_damaged_gzip_is_an_error(tmp_path: Path) -> None:
    packed = gzip.compress(os.urandom(200_000))
    for cut in (4, 10, 70_000, len(packed) - 8, len(packed) - 1):
        with pytest.raises(TarDamage, match="s.tar.gz: byte .* cut here"):
            spooled(io.BytesIO(packed[:cut]))
    flipped = bytearray(packed)
    flipped[100_000] ^= 1
    for bad in (bytes(flipped), packed + b"junk", packed[:-6] + b"\0\0\0\0\0\0"):
        with pytest.raises(TarDamage, match="corrupt gzip"):
            spooled(io.BytesIO(bad))


def test_a_gzip_bomb_stops_at_the_limit() -> None:
    bomb = gzip.compress(bytes(50 << 20))
    with pytest.raises(TarDamage, match="more than 4194304 bytes"):
        spooled(io.BytesIO(bomb), max_bytes=4 << 20)
    assert len(spooled(io.BytesIO(bomb), max_bytes=50 << 20)) == 50 << 20


def test_the_descriptor_closes_and_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", os.fspath(tmp_path))
    stream = io.BytesIO(gzip.compress(regular(NAMES)))
    with local_tar(stream, "s") as fd:
        assert scan(fd, "s").members and list(tmp_path.iterdir()) == []
    with pytest.raises(OSError):
        os.fstat(fd)
    assert not stream.closed
