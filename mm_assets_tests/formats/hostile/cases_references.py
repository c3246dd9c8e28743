"""References that lead nowhere, to several images, or out of the tar: never to another image."""

from __future__ import annotations

from typing import Any

from mm_assets_tests.formats.hostile.outcomes import JPG, PNG, Case, Frame, Lost, Sample
from mm_assets_tests.formats.hostile.pictures import tiff_of
from mm_assets_tests.formats.hostile.shards import Entry, document, file, link, special

FRAMES = tiff_of(2)


def referring(token: Any, key: str = "bad") -> Entry:
    """A sample with a text at 0 and one reference at 1."""
    return file(f"{key}.json", {"texts": ["t", None], "images": [None, token]})


def unresolved(name: str, token: str, words: str, *members: Entry, key: str = "bad", **more: Any) -> Case:
    return Case(
        name, [referring(token, key), *members], [Sample(key, images={1: None}, faults={1: words})], **more
    )


def missing(name: str, token: str, *others: Entry, key: str = "bad") -> Case:
    """A reference by the name of an image that is not there; ``others`` must not stand in for it."""
    return unresolved(name, token, f"missing member {token!r}", *others, key=key, notes=unreferenced(*others))


def dangling(name: str, token: str, *others: Entry) -> Case:
    """A reference that is neither the name of an image nor a page of a TIFF."""
    return unresolved(
        name,
        token,
        f"dangling reference {token!r}: no member, and no frame of a TIFF",
        *others,
        notes=unreferenced(*others),
    )


def broken_link(name: str, *members: Entry, **notes: Any) -> Case:
    """A reference to ``l.png``, a link without a file behind it."""
    words = "dangling reference: member 'l.png': links to "
    return unresolved(name, "l.png", words, *members, notes={"unreferenced_members": ["l.png"], **notes})


def unreferenced(*members: Entry) -> dict[str, list[str]]:
    names = [member.name for member in members if member.name]
    return {"unreferenced_members": names} if names else {}


def resolved(name: str, token: str, *members: Entry, key: str = "bad", data: bytes = PNG) -> Case:
    member = next((m.name for m in members if m.data == data), None)
    tokens = {} if token == member else {1: token}
    return Case(name, [referring(token, key), *members], [Sample(key, images={1: data}, tokens=tokens)])


MISSING = [
    missing("reference-to-nothing", "gone.png"),
    missing("reference-in-another-case", "bad.PNG", file("bad.png", PNG)),
    missing("reference-in-another-normal-form", "cafe\u0301.png", file("caf\u00e9.png", PNG)),
    dangling("reference-with-a-space", "bad.png ", file("bad.png", PNG)),
    dangling("reference-with-nul", "bad.png\0", file("bad.png", PNG)),
    dangling("reference-without-suffix", "pic.v1", file("pic.v1.png", PNG)),
    missing("reference-to-another-folder", "i.png", file("d2/i.png", PNG), key="d1/bad"),
    missing("reference-to-anothers-key", "0.png", file("other.0.png", PNG)),
    missing("reference-to-the-parent-by-dots", "../i.png", file("i.png", PNG), key="d/bad"),
    missing("reference-by-a-detour", "d/../i.png", file("i.png", PNG)),
    dangling("reference-out-of-the-tar", "../../../etc/passwd"),
    dangling("reference-absolute", "/etc/passwd"),
    missing("reference-absolute-to-an-image", "/usr/share/pixmaps/x.png"),
    dangling("reference-file-url", "file:///etc/passwd"),
    missing("reference-http-url", "http://127.0.0.1:1/x.png"),
    missing("reference-s3-url", "s3://bucket/x.png"),
    missing("reference-glob", "*.png", file("bad.png", PNG)),
    dangling("reference-to-a-folder", "pics", special("pics/", b"5")),
    dangling("reference-to-a-folder-with-slash", "pics/", special("pics/", b"5")),
    Case(
        "lost-member-beside-a-tiff-is-no-frame",
        [file("bad.json", {"texts": ["t"], "images": [None, "x.png", "y.png"]}), file("bad.tiff", FRAMES)],
        [
            Sample(
                images={1: None, 2: None},
                said={"lengths": {"texts": 1}},
                faults={1: "missing member 'x.png'", 2: "missing member 'y.png'"},
            )
        ],
        notes={"unreferenced_members": ["bad.tiff"]},
    ),
    Case(
        "page-beside-a-member-is-no-frame",
        [
            file("bad.json", {"texts": ["t", None, None], "images": [None, "bad.png", "page_1"]}),
            file("bad.png", PNG),
            file("bad.tiff", FRAMES),
        ],
        [Sample(images={1: PNG, 2: None}, faults={2: "dangling reference 'page_1'"})],
        notes={"unreferenced_members": ["bad.tiff"]},
    ),
    Case(
        "one-lost-among-three",
        [
            file("bad.json", {"texts": [None] * 3 + ["t"], "images": ["a.png", "gone.png", "b.jpg"]}),
            file("a.png", PNG),
            file("b.jpg", JPG),
        ],
        [
            Sample(
                texts={3: "t"},
                images={0: PNG, 1: None, 2: JPG},
                said={"lengths": {"images": 3}},
                faults={1: "missing member 'gone.png'"},
            )
        ],
    ),
    Case(
        "member-lost-from-the-layout-of-ours",
        [
            file("bad.json", {"texts": ["t", None], "images": [None, "3.png"], "_row_extra": {}}),
            document("3"),
            file("3.png", PNG),
        ],
        [Sample(images={1: None}, faults={1: "missing member 'bad.3.png'"}), Sample("3")],
        notes={"unreferenced_members": ["3.png"]},
    ),
]

AMBIGUOUS = [
    unresolved(
        "two-members-of-one-name",
        "a.png",
        "ambiguous: 2 members are called 'a.png'",
        file("a.png", PNG),
        file("a.png", JPG),
        notes={"unreferenced_members": ["a.png", "a.png"]},
    ),
    unresolved(
        "two-equal-members-of-one-name",
        "a.png",
        "ambiguous: 2 members are called 'a.png'",
        file("a.png", PNG),
        file("a.png", PNG),
        notes={"unreferenced_members": ["a.png", "a.png"]},
    ),
    unresolved(
        "reference-that-fits-two-members",
        "i.png",
        "ambiguous reference 'i.png': members 'i.png', 'd/i.png'",
        file("i.png", PNG),
        file("d/i.png", JPG),
        key="d/bad",
        notes={"unreferenced_members": ["i.png", "d/i.png"]},
    ),
    Case(
        "two-tiffs-for-the-pages",
        [
            file("bad.json", {"texts": ["t"], "images": [None, "page_1"]}),
            file("bad.tif", FRAMES),
            file("bad.tiff", FRAMES),
        ],
        [
            Sample(
                images={1: None},
                said={"lengths": {"texts": 1}},
                faults={1: "ambiguous: 'bad' has more than one TIFF member"},
            )
        ],
        notes={"unreferenced_members": ["bad.tif", "bad.tiff"]},
    ),
]

RESOLVED = [
    resolved("reference-beside-the-json", "i.png", file("d/i.png", PNG), key="d/bad"),
    resolved("reference-by-key-suffix", "1.png", file("bad.1.png", PNG)),
    resolved("reference-with-leading-dot", "./i.png", file("i.png", PNG)),
    resolved("reference-to-a-member-that-spells-dots", "../i.png", file("../i.png", PNG)),
    resolved("reference-to-a-member-that-spells-root", "/etc/i.png", file("/etc/i.png", PNG)),
    resolved("reference-of-odd-characters", "ü 漢?#%20\n.png", file("ü 漢?#%20\n.png", PNG)),
    Case(
        "one-member-referenced-twice",
        [file("bad.json", {"texts": [], "images": ["a.png", None, "a.png"]}), file("a.png", PNG)],
        [Sample(texts={}, images={0: PNG, 2: PNG}, said={"lengths": {"texts": 0}})],
    ),
    Case(
        "one-member-of-two-samples",
        [referring("a.png"), referring("a.png", "next"), file("a.png", PNG)],
        [Sample(images={1: PNG}), Sample("next", images={1: PNG})],
    ),
    Case(
        "reference-to-the-json-itself",
        [referring("bad.json")],
        [Sample(images={1: referring("bad.json").data}, faults={1: "unreadable image: "}, types={1: None})],
    ),
    Case(
        "reference-to-anothers-json",
        [referring("next.json"), document("next")],
        [
            Sample(images={1: document("next").data}, faults={1: "unreadable image: "}, types={1: None}),
            Sample("next"),
        ],
    ),
]

LINKS = [
    Case(
        "symbolic-link",
        [referring("l.png"), file("d/a.png", PNG), link("l.png", "d/a.png", data=PNG)],
        [Sample(images={1: PNG})],
    ),
    Case(
        "symbolic-link-by-dots",
        [referring("d/l.png"), file("a.png", PNG), link("d/l.png", "../a.png", data=PNG)],
        [Sample(images={1: PNG})],
    ),
    Case(
        "hard-link",
        [referring("l.png"), file("a.png", PNG), link("l.png", "a.png", b"1", PNG)],
        [Sample(images={1: PNG})],
    ),
    Case(
        "chain-of-links",
        [
            referring("l.png"),
            link("l.png", "m.png", data=PNG),
            link("m.png", "a.png", b"1", PNG),
            file("a.png", PNG),
        ],
        [Sample(images={1: PNG})],
        notes={"unreferenced_members": ["m.png"]},
    ),
    Case(
        "json-that-is-a-link",
        [
            link("bad.json", "json.txt", data=referring("a.png").data),
            file("json.txt", referring("a.png").data),
            file("a.png", PNG),
        ],
        [Sample(images={1: PNG})],
    ),
    Case(
        "pages-of-a-link",
        [referring("page_0"), link("bad.tiff", "x.tiff", b"1", FRAMES), file("x.tiff", FRAMES)],
        [Sample(images={1: Frame(FRAMES, 0)}, tokens={1: "page_0"}, types={1: "image/tiff"})],
        notes={"unreferenced_frames": ["bad.tiff: 1 of 2 frames"]},
    ),
    unresolved(
        "link-to-itself",
        "l.png",
        "dangling reference: member 'l.png': links to 'l.png', which leads back to itself",
        link("l.png", "l.png", b"1"),
    ),
    unresolved(
        "loop-of-links",
        "l.png",
        "dangling reference: member 'l.png': links to 'l.png', which leads back to itself",
        link("l.png", "m.png"),
        link("m.png", "l.png"),
    ),
    broken_link("link-to-nothing", link("l.png", "gone.png")),
    broken_link("link-to-a-folder", link("l.png", "pics"), special("pics/", b"5")),
    broken_link("link-to-a-pipe", link("l.png", "pipe"), special("pipe", b"6"), skipped_members=["pipe"]),
    broken_link("link-out-of-the-tar", link("l.png", "../../etc/passwd")),
    broken_link("link-absolute", link("l.png", "/etc/passwd")),
    broken_link("hard-link-absolute", link("l.png", "/etc/passwd", b"1")),
    broken_link("link-to-one-of-two-members", link("l.png", "a.png"), file("a.png", PNG), file("a.png", JPG)),
    Case(
        "json-that-is-a-link-out-of-the-tar",
        [link("bad.json", "../x.json")],
        [Lost("dangling_reference", "outside the tar", has_bytes=False)],
    ),
    Case(
        "json-that-is-a-link-to-nothing",
        [link("bad.json", "gone.json")],
        [Lost("dangling_reference", "no file of this tar", has_bytes=False)],
    ),
]

CASES = [*MISSING, *AMBIGUOUS, *RESOLVED, *LINKS]
