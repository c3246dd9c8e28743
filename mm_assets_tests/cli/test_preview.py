"""``mm-assets preview``: what filters would drop of a storage, and a page of what is near their bounds."""

from __future__ import annotations

import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

from mm_assets.accounting import CURATED
from mm_assets.filters.registry import PRESETS, chain_of, measures_for
from mm_assets.settings import Settings
from mm_assets_tests.cli.commands import fine, ok, only_line, run
from mm_assets_tests.cli.documents import image
from mm_assets_tests.cli.hostile_storage import HOSTILE_ID, fill_hostile
from mm_assets_tests.cli.scored_storage import SHARDS, fill_scored, record, score

PLUGIN = """
import pyarrow as pa
from dataclasses import dataclass
from mm_assets.filters.measure import ImageMeasure
from mm_assets.extend import ScoreFilter, minimum

class Darkness(ImageMeasure):
    name = "darkness"
    type = pa.float64()
    version = "1"
    def measure(self, content):
        return 0.5

@dataclass(frozen=True)
class Dark(ScoreFilter):
    name = "dark"
    scores = ("darkness",)
    least: float = minimum("darkness", float, "least darkness")
    def verdict(self, score):
        return "too light" if score.value("darkness") < self.least else None
    def measure(self, score):
        return score.value("darkness")

FILTERS = (Dark,)
MEASURES = (Darkness(),)
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fill_scored(tmp_path_factory.mktemp("preview"))


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    storage = fill_hostile(tmp_path_factory.mktemp("hostile"))
    score(storage, "a")
    return storage


def cells(line: str) -> list[str]:
    return re.split("  +", line.strip())


def test_counts_of_each_filter_and_of_all(root: Path) -> None:
    flags = ("--set", "max_aspect_ratio=2", "--set", "min_byte_size=77", "--set", "min_words=4")
    lines = ok("preview", "--storage", root, *flags).splitlines()
    narrow, wide = 6 * len(image(30)), 6 * len(image(70))
    both = narrow + wide
    assert lines[0] == "preview of 3 of 3 shards, from stored scores"
    half, everything = ["6 (25.0%)", "6 (50.0%)", "0 (0.0%)"], ["24 (100.0%)", "12 (100.0%)", "6 (100.0%)"]
    wide_share, narrow_share = (f"{nbytes} B ({nbytes / both:.1%})" for nbytes in (wide, narrow))
    whole = f"{both} B (100.0%)"
    assert [cells(line) for line in lines[2:6]] == [
        ["aspect_ratio (max_aspect_ratio=2)", *half, wide_share, "0 (0.0%)", "drop_item"],
        ["byte_size (min_byte_size=77)", *half, narrow_share, "0 (0.0%)", "drop_item"],
        ["words (min_words=4)", *everything, whole, "12 (50.0%)", "drop_sample"],
        ["all together", *everything, whole],
    ]
    assert lines[6:] == [
        f"there are 24 items in 6 samples, among them 12 images of {both} B",
        "all filters together keep 0 (0.0%) items, 0 (0.0%) images, 0 (0.0%) samples, 0 B (0.0%) of images",
    ]


def test_filters_of_texts(tmp_path: Path) -> None:
    storage = fill_scored(tmp_path)
    flags = ("--set", "min_text_words=4", "--set", "max_text_word_length=9", "--set", "min_texts=1")
    page = tmp_path / "page.html"
    unmeasured = run("preview", "--storage", storage, *flags).stderr.splitlines()
    assert [line.partition(";")[0] for line in unmeasured] == [
        f"mm-assets: filter {names[-1]} is left out: 3 shards of 3 without text_position, {', '.join(names)}"
        for names in (["text_words"], ["text_words", "text_word_length"])
    ]
    score(storage, *SHARDS, sample_measures=measures_for([], ["text_word_length"]).samples)
    lines = ok("preview", "--storage", storage, *flags, "--html", page).splitlines()
    found = [cells(line) for line in lines if line.startswith("  ")][1:]
    assert [(row[0], row[1], row[3]) for row in found] == [
        ("text_words (min_text_words=4)", "6 (25.0%)", "0 (0.0%)"),
        ("text_word_length (max_text_word_length=9)", "0 (0.0%)", "0 (0.0%)"),
        ("texts (min_texts=1)", "0 (0.0%)", "0 (0.0%)"),
        ("all together", "24 (100.0%)", "6 (100.0%)"),
    ]
    html = page.read_text()
    assert "share of texts kept by min_text_words" in html
    scores = {cells(line)[0]: cells(line)[1:] for line in ok("preview", "--storage", storage).splitlines()}
    assert (scores["text_words"][0], scores["text_words"][-1]) == ("3", "3")
    shown = ok("show", "a-one", "--storage", storage)
    assert "text_word_length" in shown
    assert "text_position" not in shown


def test_settings_presets_and_actions(root: Path) -> None:
    given = {"MM_MIN_WORDS": "4", "MM_MAX_ASPECT_RATIO": "2"}
    show = ("preview", "a", "--storage", root)

    def filters(*flags: str) -> list[str]:
        lines = fine(run(*show, *flags, **given)).splitlines()
        return [" ".join((cells(line)[0], cells(line)[-1])) for line in lines if line.startswith("  ")][1:-1]

    ratio, words = "aspect_ratio (max_aspect_ratio=2) drop_item", "words (min_words=4) drop_sample"
    assert filters() == [ratio, words]
    assert filters("--set", "min_words=") == [ratio]
    assert filters("--set", "min_words=9") == [ratio, "words (min_words=9) drop_sample"]
    assert filters("--set", "min_words=", "--filter-actions", "aspect_ratio=flag") == [
        "aspect_ratio (max_aspect_ratio=2) flags 2 images"
    ]
    preset = filters("--filter-preset", "mint1t", "--set", "languages=", "--set", "min_language_probability=")
    assert [line.partition(" ")[0] for line in preset] == [
        *("aspect_ratio", "image_size", "longer_side", "images", "words"),
    ]


def test_without_filters_it_shows_the_scores(root: Path) -> None:
    lines = ok("preview", "--storage", root).splitlines()
    found = {cells(line)[0]: cells(line)[1:] for line in lines if line.startswith("  ")}
    assert found["score"] == ["least", "5%", "25%", "half", "75%", "95%", "greatest"]
    assert (found["width"][0], found["width"][3], found["width"][6]) == ("30", "50", "70")
    assert {"aspect_ratio", "byte_size", "images", "words", "images_per_word"} <= set(found)
    assert lines[-1].startswith("no filter is on; set a bound: mm-assets preview --set min_image_side=200")


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (
            ["--set", "min_word=3"],
            "--set min_word: there is no such setting of a filter; the nearest is min_words",
        ),
        (["--set", "min_words"], "--set 'min_words': write it as NAME=VALUE"),
        (["--set", "min_words=x"], "MM_MIN_WORDS must be a whole number, not 'x'"),
        (
            ["--set", "max_words=1", "--set", "min_words=2"],
            "MM_MIN_WORDS is 2, more than MM_MAX_WORDS, which is 1",
        ),
        (
            ["--filter-preset", "x"],
            f"MM_FILTER_PRESET must be one of {', '.join(PRESETS)}, not 'x'",
        ),
        (
            ["--filter-actions", "word=flag"],
            "MM_FILTER_ACTIONS: 'word=flag': there is no filter 'word'; the nearest is words",
        ),
    ],
)
def test_what_does_not_fit_is_one_line(root: Path, flags: list[str], line: str) -> None:
    assert only_line(run("preview", "--storage", root, *flags)) == line


def test_shards(root: Path, tmp_path: Path) -> None:
    words = ("--set", "min_words=1")
    assert ok("preview", "sub/c", "--storage", root, *words).startswith("preview of 1 of 3 shards, ")
    line = only_line(run("preview", "sub/d", "--storage", root, *words))
    assert line == f"{root}: shard 'sub/d' has no stored scores; the nearest is 'sub/c'"
    shutil.copytree(root / "curated", tmp_path / "curated")
    line = only_line(run("preview", "--storage", tmp_path))
    hint = "measure them: mm-assets run --assets image_scores,sample_scores"
    assert line == f"{tmp_path}: no scores are stored here; {hint}"


def test_of_many_shards_some_are_looked_at(root: Path, tmp_path: Path) -> None:
    names = [f"s{number:03}" for number in range(450)]
    for folder in ("scores", "sample_scores"):
        (tmp_path / folder).mkdir()
        for name in names:
            shutil.copyfile(root / folder / "a.parquet", tmp_path / folder / f"{name}.parquet")
    for name in names:
        record(tmp_path, CURATED.asset, name, "rows", {})
        for asset in ("image_scores", "sample_scores"):
            record(tmp_path, asset, name, "scores", {CURATED.asset: "rows"})
    (tmp_path / "curated").mkdir()
    lines = ok("preview", "--storage", tmp_path, "--set", "max_aspect_ratio=2").splitlines()
    assert lines[0] == "preview of 400 of 450 shards, from stored scores"
    assert cells(lines[2])[1] == "800 (25.0%)"


def test_scores_that_are_missing(root: Path, tmp_path: Path) -> None:
    shutil.copytree(root, tmp_path / "storage")
    (tmp_path / "storage" / "sample_scores" / "b.parquet").unlink()
    done = run(
        "preview", "--storage", tmp_path / "storage", "--set", "max_repetition=0.5", "--set", "min_words=1"
    )
    assert done.returncode == 1
    measure = "mm-assets run --assets image_scores,sample_scores"
    assert done.stderr.splitlines() == [
        "mm-assets: filter repetition is left out: 2 shards of 2 without repetition; "
        f"measure them: MM_SCORES=repetition {measure}",
        f"mm-assets: shard 'b' left out, without sample_scores; measure them: {measure}",
    ]
    rows = [cells(line) for line in done.stdout.splitlines() if line.startswith("  ")]
    assert [row[0] for row in rows[1:]] == ["words (min_words=1)", "all together"]


def test_a_shard_with_damaged_scores_is_left_out(root: Path, tmp_path: Path) -> None:
    shutil.copytree(root, tmp_path / "storage")
    file = tmp_path / "storage" / "scores" / "a.parquet"
    file.write_bytes(b"no Parquet")
    line = only_line(run("preview", "--storage", tmp_path / "storage", "--set", "min_words=1"))
    hint = "measure them: mm-assets run --assets image_scores,sample_scores"
    assert line == f"shard 'a' left out, without image_scores; {hint}"


def test_a_filter_and_a_measure_of_a_plugin(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "dark_plugin.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("MM_PLUGINS", "dark_plugin")
    monkeypatch.setenv("MM_MIN_DARKNESS", "0.6")
    chain = chain_of(Settings.load().active_filters())
    assert chain is not None
    shutil.copytree(root, tmp_path / "storage")
    score(tmp_path / "storage", *SHARDS, measures=chain.image_measures)
    flags = ("--storage", tmp_path / "storage", "--set", "min_darkness=0.6")
    lines = fine(run("preview", *flags, MM_PLUGINS="dark_plugin")).splitlines()
    assert cells(lines[2])[:3] == ["dark (min_darkness=0.6)", "12 (50.0%)", "12 (100.0%)"]


class _Page(HTMLParser):
    """Elements with their attributes, and all text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_is_one_file_with_curves_and_pictures(root: Path, tmp_path: Path) -> None:
    target = tmp_path / "page.html"
    flags = ("--set", "max_aspect_ratio=2", "--set", "min_words=4", "--set", "keep_images=width > 0")
    printed = ok("preview", "--storage", root, *flags, "--html", target)
    assert printed.splitlines()[:2] == [str(target), "preview of 3 of 3 shards, from stored scores"]
    html = target.read_text()
    page = _Page(html)
    assert "://" not in html
    sources = [str(attrs["src"]) for tag, attrs in page.elements if tag == "img"]
    assert {source.partition(",")[0] for source in sources} == {"data:image/png;base64"}
    assert not {"script", "link", "iframe", "object"} & {tag for tag, _ in page.elements}
    assert html.count("<table") == len(re.findall('<div class="wide"><table', html)) == 2  # they scroll
    assert "td:first-child { min-width: 9rem; }" in html
    svgs = re.findall("<svg.*?</svg>", html)
    assert [ElementTree.fromstring(svg)[0].text for svg in svgs] == [
        "share of images kept by max_aspect_ratio",
        "share of samples kept by min_words",
    ]
    # of the ratio 6 on each side, of samples 5 with 2 images each, of the condition 12 that are kept
    sections = html.split("<section>")[1:]
    assert [section.count("<img") for section in sections] == [12, 12, 10]
    assert [section.count("<figure>") for section in sections] == [12, 12, 5]
    assert "<h3>Kept, nearest to the bound first</h3>" in sections[0]
    assert "<h3>Kept: none</h3>" in sections[2]
    assert len(set(re.findall("text of (?:a|b|sub-c)-(?:one|two)", page.text))) == 5
    assert ok("preview", "--storage", root, *flags, "--html", "-") == html


def test_the_page_of_distributions(root: Path) -> None:
    html = ok("preview", "--storage", root, "--html", "-")
    titles = [ElementTree.fromstring(svg)[0].text for svg in re.findall("<svg.*?</svg>", html)]
    assert titles[:2] == ["distribution of width", "distribution of height"]


def test_without_curated_rows_there_are_no_pictures(root: Path, tmp_path: Path) -> None:
    shutil.copytree(root, tmp_path / "storage")
    shutil.rmtree(tmp_path / "storage" / "curated")
    html = ok("preview", "--storage", tmp_path / "storage", "--set", "max_aspect_ratio=2", "--html", "-")
    assert "<img" not in html and html.count("its curated rows are not there") == 12


def test_hostile_data_stays_text(hostile: Path) -> None:
    flags = ("--set", "max_aspect_ratio=2", "--set", "min_words=1000")
    html = ok("preview", "--storage", hostile, *flags, "--html", "-")
    page = _Page(html)
    assert HOSTILE_ID.replace("\x1b", "\\x1b") in page.text
    assert "script" not in {tag for tag, _ in page.elements}
    assert not [name for _, attrs in page.elements for name in attrs if name.startswith("on")]
    assert not set(html) & {"\x1b", "\x07", "\u202e"}


def test_a_condition_with_markup_stays_text(root: Path) -> None:
    html = ok("preview", "--storage", root, "--set", "keep_images=format <> '<b>x</b>'", "--html", "-")
    assert "<b>x" not in html and "&lt;b&gt;x" in html


def test_lists_of_samples_and_images_are_named_with_what_each_drops(root: Path, tmp_path: Path) -> None:
    """The page names no folder of this machine."""
    (tmp_path / "samples.txt").write_text("a-one\n")
    (tmp_path / "images.csv").write_text("sample_id,position\na-two,1\n")
    given = {"MM_DROP_IDS": f"{tmp_path}/samples.txt,{tmp_path}/images.csv"}
    command = ("preview", "--storage", root)
    (row,) = [line for line in ok(*command, **given).splitlines() if line.startswith("  drop_ids ")]
    named, *_, action = cells(row)
    assert (named, action) == ("drop_ids (drop_ids=samples.txt,images.csv)", "drop_sample, drop_item")
    page = ok(*command, "--html", "-", **given)
    assert "drop_ids=samples.txt,images.csv" in page and str(tmp_path) not in page
