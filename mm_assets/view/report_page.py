"""The report on a data set as one HTML page, and its figures for the card of a published data set.

`report_page` makes the page: one file without scripts, which loads nothing. `card` is the same in short, as
Markdown; `eu_summary` has the figures that the EU asks for. None has a path of this machine in it, nor a
secret.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from mm_assets import __version__
from mm_assets.accounting import BY_ASSET, CURATED, FILTERED, TARS
from mm_assets.model.errors import ERASED, LISTED_HASH, counted
from mm_assets.model.errors import html_table as table
from mm_assets.model.errors import html_text as text
from mm_assets.model.json_codec import is_json
from mm_assets.pool.workers import WorkerPool
from mm_assets.storage import without_secrets
from mm_assets.storage.files import join, publish_bytes, read_bytes
from mm_assets.view import note, page
from mm_assets.view.overview import DROPPED, KEPT
from mm_assets.view.preview_page import SHEET_STYLE, counted_in_thousands, figure, figures, spread_svg
from mm_assets.view.preview_study import contents_of
from mm_assets.view.report import (
    NOTHING,
    RAW,
    REPORT,
    Cloud,
    Report,
    Stage,
    gather,
    in_words,
    summary,
    top,
    unknown_items,
)
from mm_assets.view.sample import byte_size, cut
from mm_assets.view.shard_report import (
    DOMAINS,
    LABELS,
    LANGUAGES,
    LICENCES,
    OPT_OUTS,
    Amounts,
    Labels,
    Sources,
    plain_name,
)

_STYLE: Final = (
    SHEET_STYLE
    + f"""
.kept {{ background: {KEPT}; }} .dropped {{ background: {DROPPED}; }}
.kept, .dropped {{ display: inline-block; height: .7rem; vertical-align: baseline; }}
.key {{ width: .7rem; margin-inline-end: .25rem; }}
.bar {{ min-width: 8rem; white-space: nowrap; }}
.funnel td:not(:first-child), .numbers td:not(:first-child) {{ text-align: end; }}
.funnel .whole td {{ font-weight: 600; border-bottom-color: currentColor; }}
.wrong {{ color: var(--bad); font-weight: 600; }}
.plots {{ display: grid; grid-template-columns: repeat(auto-fill, minmax(20rem, 1fr)); gap: 1rem; }}
.plots figure {{ margin: 0; }}
.plots figcaption {{ font-size: .9rem; color: inherit; }} .plots svg {{ font-size: 20px; overflow: visible; }}
.sheet {{ margin-top: .75rem; }}
pre {{ white-space: pre-wrap; font-size: .75rem; }}
@media print {{
  body {{ max-width: none; print-color-adjust: exact; }} figure, tr {{ break-inside: avoid; }}
}}
"""
)
_LEGEND: Final = (
    '<p class="note"><span class="kept key"></span>kept by the filters '
    '<span class="dropped key"></span>dropped, on top</p>'
)
PAGE: Final = "index.html"
CARD: Final = "README.md"
_MOST_LABELS: Final = 12
_MOST_REASONS: Final = 20
_MOST_SHARDS: Final = 2000  # to read the accounts of more takes a minute
_STATED: Final = "not stated"


def report_page(report: Report) -> str:
    """Return the page.

    Raises:
        ValueError: a curated file is damaged; the message names it.
    """
    picks = [pick for picks in report.picks.values() for pick in picks]
    pairs = [pick for found in report.found_copies.values() for pick in found.pairs]
    originals = [pick.original for pick in pairs if pick.original is not None]
    contents = contents_of(report.root, [*picks, *pairs, *originals])
    sections: list[tuple[str, Iterable[str]]] = [
        ("What went where", _funnel(report)),
        ("Before and after the filters", _spreads(report)),
        ("Languages, domains, licences", _labels(report)),
        ("Why items were dropped", _reasons(report, contents)),
        ("What was faulty", _faults(report)),
        ("Duplicates", _copies(report, contents)),
        ("Map of the images", _map(report.cloud)),
        ("Columns", _schema(report)),
        ("Proof", _proof(report)),
        ("Settings", _settings(report)),
        ("What is not in this report", map(note, report.notes)),
    ]
    made = f"{report.made:%Y-%m-%d %H:%M} UTC, mm-assets {__version__}"
    body = [f"<h1>Report on the data set</h1>\n<p>{text(summary(report))}</p>{note(made)}"]
    for title, found in sections:
        if inner := "\n".join(found):
            body.append(f"<section>\n<h2>{text(title)}</h2>\n{inner}\n</section>")
    return page("Report on the data set", "\n".join(body), _STYLE)


def publish_report(root: str) -> str:
    """Write the page to its place below a storage root, and return the place.

    Raises:
        ValueError: as `gather` and `report_page`.
    """
    page_uri = join(root, REPORT, PAGE)
    publish_bytes(page_uri, report_page(gather(root)).encode())
    return page_uri


def page_entry(root: str, shards: int) -> dict[str, Any]:
    """Write the page to its place, and return the entry of an event that tells where it is, as plain values.

    Images of it are decoded in a process of its own. Of very many shards nothing is written.
    """
    if shards > _MOST_SHARDS:
        return {"page": f"written by mm-assets report: of more than {_MOST_SHARDS:,} shards"}
    with WorkerPool(1) as pool:
        ((_, page),) = pool.map(publish_report, [root])
    return {"page": {"path": page} if isinstance(page, str) else page.message}


_AMOUNTS: Final = ("samples", "texts", "images", "bytes of images", "items")


def _cells(amounts: Amounts) -> tuple[str, ...]:
    numbers = (amounts.samples, amounts.texts, amounts.images, amounts.items)
    samples, texts, images, items = (f"{number:,}" for number in numbers)
    return samples, texts, images, byte_size(amounts.nbytes), items


def _steps(stage: Stage) -> Iterator[tuple[str, Amounts]]:
    """Yield what a stage takes away, in words, and how much."""
    for (outcome, kind), amounts in sorted(stage.lost.items(), key=lambda lost: (-lost[1].items, lost[0])):
        yield f"− {outcome}: {kind}", amounts
    if stage.waiting_shards:
        shards, whose = (
            counted(stage.waiting_shards, "shard"),
            "" if stage.source == RAW else " of these rows",
        )
        yield f"− of {shards} not made{whose} yet", stage.waiting
    if stage.earlier != NOTHING:
        yield "+ of shards made of earlier rows", stage.earlier


def _funnel(report: Report) -> Iterator[str]:
    names = ("", *_AMOUNTS, "files")
    yield '<div class="wide"><table class="funnel"><thead><tr>'
    yield "".join(f"<th>{text(name)}</th>" for name in names) + "</tr></thead><tbody>"
    above = ""
    for stage in report.stages.values():
        if stage.source == RAW:
            yield _row(f"{RAW} ({report.raw_shards:,})", stage.given)
        elif stage.source != above and any(_steps(stage)):
            yield _row(stage.source, stage.given)
        above = stage.asset
        for name, amounts in _steps(stage):
            yield _row(name, amounts, "")
        yield _row(f"= {stage.asset}", stage.written, files=byte_size(stage.nbytes))
    yield "</tbody></table></div>"
    wrong = [stage for stage in report.stages.values() if stage.unaccounted != NOTHING]
    if not wrong:
        said = "It adds up, by the account of each shard: what went in came out, or was taken out"
        yield note(f"{said}{unknown_items(report)}")
    for stage in wrong:
        cells = zip(_AMOUNTS, _cells(stage.unaccounted), strict=True)
        missing = ", ".join(f"{cell} {name}" for name, cell in cells if cell not in ("0", byte_size(0)))
        yield f'<p class="wrong">{text(f"{stage.asset} does not add up: {missing}")}</p>'


def _row(name: str, amounts: Amounts, kind: str = "whole", files: str = "") -> str:
    cells = "".join(f"<td>{text(cell)}</td>" for cell in (*_cells(amounts), files))
    return f'<tr class="{kind}"><td>{text(name)}</td>{cells}</tr>'


def _spreads(report: Report) -> Iterator[str]:
    if not report.scored_shards:
        yield note("No shard with filtered rows has scores of its rows as they are")
        return
    if report.scored_shards < report.raw_shards:
        yield note(f"Of {report.scored_shards:,} of {report.raw_shards:,} shards")
    yield _LEGEND
    yield '<div class="plots">'
    for name, spread in report.spreads.items():
        values, kept, dropped = spread.counts()
        if len(values):
            svg = spread_svg(name, values, kept, dropped)
            yield f"<figure><figcaption>{text(name)}</figcaption>{svg}</figure>"
    yield "</div>"
    yield from _ranking("Formats of the images", report.formats, "images")


def _labels(report: Report) -> Iterator[str]:
    for what, labels in report.labels.items():
        yield from _ranking(what.capitalize(), labels, "samples")
    missing = [what for what in LABELS if what not in report.labels]
    if missing and report.scored_shards:
        names = "; ".join(f"{what}: {', '.join(LABELS[what])}" for what in missing)
        yield note(f"No metadata column has {' or '.join(missing)}. Looked for {names}")


def _ranking(title: str, labels: Labels, unit: str) -> Iterator[str]:
    before = labels.before
    if not before:
        return
    source = f" by {', '.join(sorted(labels.columns))}" if labels.columns else ""
    yield f"<h3>{text(title + source)}</h3>"
    shown = top(before, before, _MOST_LABELS)
    largest, rows = max(before.values()), []
    counts = [(label, labels.kept[label], labels.dropped[label]) for label in shown]
    if others := len(before) - len(shown):
        rest = [
            sum(side.values()) - sum(side[label] for label in shown) for side in (labels.kept, labels.dropped)
        ]
        counts.append((f"{others:,} others", rest[0], rest[1]))
    for label, kept, dropped in counts:
        bars = "".join(
            f'<span class="{kind}" style="width:{7 * min(count / largest, 1):.2f}rem"></span>'
            for kind, count in (("kept", kept), ("dropped", dropped))
            if count
        )
        rows.append(
            f'<tr><td dir="auto">{text(label)}</td><td>{kept + dropped:,}</td><td>{kept:,}</td>'
            f'<td class="bar">{bars}</td></tr>'
        )
    heads = "".join(f"<th>{head}</th>" for head in ("", f"{unit} before", "after", ""))
    body = f"<thead><tr>{heads}</tr></thead><tbody>{''.join(rows)}</tbody>"
    yield f'<div class="wide"><table class="labels">{body}</table></div>'
    if labels.is_cut:
        yield note("Rare ones are left out of the count")


def _reasons(report: Report, contents: Mapping[Any, Sequence[Any]]) -> Iterator[str]:
    by_filter: dict[str, list[tuple[str, int]]] = {}
    for (kind, reason), number in report.reasons.most_common():
        by_filter.setdefault(kind, []).append((reason, number))
    for kind, reasons in by_filter.items():
        yield f"<h3>{text(kind)}</h3>"
        rows = [(cut(reason, 200) or "others", f"{number:,}") for reason, number in reasons[:_MOST_REASONS]]
        if others := sum(number for _, number in reasons[_MOST_REASONS:]):
            rows.append((f"{len(reasons) - _MOST_REASONS:,} other reasons", f"{others:,}"))
        yield f'<div class="wide numbers">{table(("reason", "items"), rows)}</div>'
        if picks := report.picks.get(kind):
            shown = "\n".join(figure(pick, contents.get(pick, ())) for pick in picks)
            yield f'<div class="sheet">\n{shown}\n</div>'
    if report.flagged:
        flagged = [
            (kind, reason, f"{number:,}")
            for (kind, reason), number in report.flagged.most_common(_MOST_REASONS)
        ]
        shown = table(("filter", "reason", "items"), flagged)
        yield f'<h3>Flagged, and kept</h3><div class="wide">{shown}</div>'


def _faults(report: Report) -> Iterator[str]:
    rows = [
        (kind, partition, _public(cut(message, 300)))
        for kind, messages in sorted(report.faults.items())
        for partition, message in messages
    ]
    if rows:
        yield f'<div class="wide">{table(("kind", "raw shard", "for example"), rows)}</div>'


def _copies(report: Report, contents: Mapping[Any, Sequence[Any]]) -> Iterator[str]:
    for what, copies in report.found_copies.items():
        yield f"<h3>Copies among {what}</h3>"
        counts = f"{copies.exact:,} exact, {copies.near:,} near, in {counted(copies.clusters, 'cluster')}"
        outdated = f"; {counted(copies.outdated, 'shard')} made anew since" if copies.outdated else ""
        yield note(f"{counts}, by mm-assets duplicates{outdated}. Each copy beside what stays in its place")
        largest = [(cut(name, 100), f"{number:,}") for name, number in copies.largest]
        yield f'<div class="wide numbers">{table(("stays", "copies"), largest)}</div>'
        shown = "\n".join(figures(pick, contents) for pick in copies.pairs)
        yield f'<div class="sheet{"" if what == "images" else " samples"}">\n{shown}\n</div>'
    rows = [
        (what, f"{found.of:,}", f"{found.groups:,}", f"{found.surplus:,}", f"{found.largest:,}")
        for what, found in report.copies.items()
    ]
    if rows:
        heads = ("", "looked at", "groups of equal ones", "beyond one of each group", "largest group")
        yield f'<div class="wide numbers">{table(heads, rows)}</div>'
        yield note("Before the filters, over all shards with scores")


def _map(cloud: Cloud | None) -> Iterator[str]:
    if cloud is None:
        return
    paths = ""
    for chosen, colour in ((~cloud.is_dropped, KEPT), (cloud.is_dropped, DROPPED)):
        places = (cloud.points[chosen] * 495 + 500).round().astype(int).tolist()
        dots = "".join(f"M{x} {y}h0" for x, y in places)
        paths += f"<path d='{dots}' stroke='{colour}' stroke-width='5' stroke-linecap='round' opacity='.5'/>"
    yield _LEGEND
    yield f"<svg viewBox='0 0 1000 1000' role='img'><title>map of {text(cloud.column)}</title>{paths}</svg>"
    yield note(
        f"{len(cloud.points):,} of {cloud.of:,} images by {cloud.column}, in the two directions in which "
        f"they differ most (principal components), with {cloud.share:.0%} of the variance"
    )


def _schema(report: Report) -> Iterator[str]:
    rows = [(column.name, "JSON" if is_json(column) else str(column.type)) for column in report.schema]
    if rows:
        yield f'<div class="wide">{table(("column", "type"), rows)}</div>'


def _proof(report: Report) -> Iterator[str]:
    proven: Mapping[str, Mapping[str, Any]] = report.proof.get("assets", {})
    if not proven:
        yield note("Nothing is proven: mm-assets prove")
        return
    rows = []
    for asset, stage in report.stages.items():
        sums = proven.get(asset)
        if sums is None:
            rows.append((asset, f"0 of {stage.shards:,}", "", "", "", "", "not proven"))
            continue
        said = "equal" if sums["is_equal"] else f"{len(sums['problems']):,} shards differ"
        numbers = (f"{sums[name]:,}" for name in ("samples", "texts", "images"))
        rows.append((asset, f"{sums['shards']:,} of {stage.shards:,}", *numbers, sums["digest"], said))
    heads = ("output", "shards", "samples", "texts", "images", "digest of all rows", "as written")
    yield f'<div class="wide">{table(heads, rows)}</div>'
    yield note("Read again by other programs than wrote them; outputs of the same rows have the same digest")


def _settings(report: Report) -> Iterator[str]:
    for asset, found in report.settings.items():
        for settings, shards in found.most_common(5):
            head = f"{asset}: {counted_in_thousands(shards, 'shard')}"
            yield f"<details><summary>{text(head)}</summary><pre>{text(_public(settings))}</pre></details>"


_LOCAL_PATH: Final = re.compile(r"(?:file://|(?<![\w.:/-]))/(?:[^/\s\"':,]+/)+(?=[^/\s\"':,]+)")


def _public(words: str) -> str:
    """Return text without secrets, and without folders of this machine: of a path its last name stays."""
    return _LOCAL_PATH.sub("…/", without_secrets(words))


_MOST_ON_CARD: Final = 8


def card(report: Report, outputs: Sequence[str]) -> str:
    """Return a chapter of Markdown on some outputs: amounts, filters, languages, domains and licences.

    Args:
        outputs: assets that are published.
    """
    curated = report.stages[CURATED.asset]
    lines = ["## Figures", "", summary(report), ""]
    lines += _markdown(
        ("output", *_AMOUNTS), [(stage.asset, *_cells(stage.written)) for stage in _of(report, outputs)]
    )
    if curated.lost:
        counts = ((kind, f"{amounts.items:,}") for (_, kind), amounts in curated.lost.items())
        lines += ["Faulty, and in quarantine:", "", *_markdown(("kind", "items"), list(counts))]
    filtered = report.stages.get(FILTERED.asset)
    if filtered is not None and filtered.lost:
        rows = [(kind, *_cells(amounts)) for (_, kind), amounts in filtered.lost.items()]
        lines += ["Dropped by filters:", "", *_markdown(("filter", *_AMOUNTS), rows)]
    is_after = any(asset != CURATED.asset for asset in outputs)
    for what, labels in report.labels.items():
        counts_of = labels.kept if is_after else labels.before
        rows = [(label, f"{counts_of[label]:,}") for label in top(counts_of, counts_of, _MOST_ON_CARD)]
        if others := len(counts_of) - len(rows):
            rows.append(
                (
                    f"{others:,} others",
                    f"{sum(counts_of.values()) - sum(counts_of[label] for label, _ in rows):,}",
                )
            )
        by = ", ".join(sorted(labels.columns))
        lines += [f"{what.capitalize()}, by {_escaped(by)}:", "", *_markdown((what, "samples"), rows)]
    if LICENCES not in report.labels:
        lines += ["No metadata column states a licence.", ""]
    return "\n".join(lines)


_UNKNOWN: Final = "not recorded"
_RANGES: Final = {
    "words": ("1 billion", 10**9, "10 trillion", 10**13),
    "images": ("1 million", 10**6, "1 billion", 10**9),
}


def eu_summary(report: Report, sources: Sources) -> str:
    """Return figures for the public summary of training content, as Markdown.

    Article 53(1)(d) of Regulation (EU) 2024/1689 asks for it. Chapters, and ranges of sizes, are those of the
    template of July 2025. What is not recorded is named as such.
    """
    written, lost = report.stages[sources.asset].written, report.stages[CURATED.asset].lost
    erased, listed = (lost.get(("quarantined", kind), NOTHING) for kind in (ERASED, LISTED_HASH))
    domains = sources.domains
    shown = [*top(domains, domains, -(-len(domains) // 10)), ""]
    rows = [(of or "(none)", f"{sources.nbytes[of]:,}", f"{sources.documents[of]:,}") for of in shown]
    amounts = [f"the largest 10 % of {len(domains):,} by bytes of texts and images" if domains else ""]
    amounts += [f"without {sources.unsized:,} images of unknown size"] if domains and sources.unsized else []
    amounts += ["without small domains"] if sources.is_cut else []
    chapters = {
        "1.1, 1.2 Provider and model": [_point("all")],
        "1.3 Modalities and size": [
            *_modalities(written, sources),
            _point("latest collection", sources.period[-1:], sources.columns.get("fetched", ())),
            _labelled(report, LANGUAGES),
            _point("continuous training on new data"),
        ],
        "2.1, 2.2 Data sets": [
            *_folders(sources),
            _labelled(report, LICENCES),
            _point("which are public, licensed, or private"),
        ],
        "2.3 Crawled data": [
            _point("crawlers"),
            _point("period", [" to ".join(sources.period)], sources.columns.get("fetched", ())),
            _point("domains", amounts, sources.columns.get(DOMAINS, ())),
            "",
            *_markdown(("domain", "bytes", "samples"), rows),
        ],
        "2.4, 2.5, 2.6 User data, synthetic data, other sources": [_point("all")],
        "3.1 Reservation of rights": [
            _point("opt-outs that crawlers respect"),
            _point("requests to erase", [f"{sources.erasures:,}", f"{erased.items:,} items kept out"]),
            *_opt_outs(report, sources),
        ],
        "3.2 Illegal content": [
            _point("images kept out by hash lists", [f"{listed.images:,}"]),
            _point("other measures"),
        ],
    }
    lines = [
        "# Public summary of training content",
        "Figures for Article 53(1)(d) of Regulation (EU) 2024/1689, by the chapters of its template.",
        f"Of {sources.asset}: {in_words(written)}; {report.made:%Y-%m-%d}, mm-assets {__version__}.",
    ]
    if report.scored_shards < (shards := report.stages[CURATED.asset].shards):
        lines.append(f"Languages and licences are those of {report.scored_shards:,} of {shards:,} shards.")
    for title, found in chapters.items():
        lines += ["", f"## {title}", "", *found]
    return "\n".join(lines) + "\n"


def _point(what: str, words: Iterable[str] = (), columns: Iterable[str] = ()) -> str:
    """Return one fact, with the columns that it is from."""
    by = ", ".join(map(_escaped, sorted(columns)))
    return f"- {what}: {', '.join(filter(None, words)) or _UNKNOWN}{f' (by {by})' if by else ''}"


def _modalities(written: Amounts, sources: Sources) -> list[str]:
    words = f"{sources.words:,} words; tokens: {_UNKNOWN}"
    images = f"{written.images:,} images of {byte_size(written.nbytes)}"
    rows = [
        ("text", words, _range(sources.words, "words"), _UNKNOWN),
        ("image", images, _range(written.images, "images"), _UNKNOWN),
        ("audio, video", "none", "none", ""),
    ]
    return _markdown(("modality", "size", "range", "types of content"), rows)


def _range(number: int, unit: str) -> str:
    low, least, high, most = _RANGES[unit]
    words = f"{low} to {high}" if number >= least else f"less than {low}"
    return f"{f'more than {high}' if number > most else words} {unit}"


def _labelled(report: Report, what: str) -> str:
    labels = report.labels.get(what, Labels())
    return _point(what, _by_number(labels.kept) if labels.columns else (), labels.columns)


def _by_number(counts: Mapping[str, int]) -> list[str]:
    shown = [f"{_escaped(name)} {counts[name]:,}" for name in top(counts, counts, _MOST_LABELS)]
    return shown if len(shown) == len(counts) else [*shown, f"{len(counts) - len(shown):,} others"]


def _folders(sources: Sources) -> list[str]:
    every = max(sum(part.samples for part in sources.sets.values()), 1)
    ranked = sorted(sources.sets.items(), key=lambda entry: (-entry[1].samples, entry[0]))
    rows = [(name or "(none)", *_cells(of), f"{of.samples / every:.1%}") for name, of in ranked]
    return _markdown(("folder of raw shards", *_AMOUNTS, "share of samples"), rows)


def _opt_outs(report: Report, sources: Sources) -> Iterator[str]:
    """Yield filters that look at what rightsholders reserve, and what the rows that are left say."""
    settings = map(json.loads, report.settings.get(FILTERED.asset, ()))
    steps = {(kind, json.dumps(step)) for each in settings for kind, step in each.get("steps", {}).items()}
    names = (*OPT_OUTS, "c2pa_training")
    looking = sorted((kind, step) for kind, step in steps if any(name in plain_name(step) for name in names))
    for kind, step in looking:
        dropped = report.stages[FILTERED.asset].lost.get(("filtered", kind), NOTHING).items
        condition = json.loads(step).get("condition", step)
        yield _point(f"dropped by {_escaped(kind)}", [f"{dropped:,} items: {_escaped(_public(condition))}"])
    yield from [] if looking else [_point("filters by opt-outs", ["none"])]
    left = "opt-outs of the samples that are left"
    yield from [] if sources.opt_outs else [_point(left)]
    for name, counts in sources.opt_outs.items():
        yield _point(left, _by_number(counts) or ["none"], [name])


_PARQUET_CARD: Final = """---
configs:
- config_name: default
  data_files:
  - {split: train, path: "*.parquet"}
---

# Interleaved image-text samples

A row for each item of a sample, in the order of the sample: its metadata (position -1), texts and images.
Image bytes are in `binary_content`.
"""
_REFERRING: Final = f"""
Where `binary_ref` is set, they are in the row of the same `sample_id`, `position` and `modality` of the file
of the same name in `{CURATED.folder}`.
"""
_ALL_CARD: Final = """
# Interleaved image-text samples

"""
_FEATURES: Final = "dataset_info:\n"
_PATTERNS: Final = {CURATED.kind: "*.parquet", TARS.kind: "*.tar"}


def cards(root: str, report: Report, outputs: Sequence[str]) -> dict[str, bytes]:
    """Return the cards of published outputs by path below the root: one for each folder, and one for all.

    Hugging Face datasets reads all of a data set in one format. So the card of all declares the outputs of
    the format that comes first.

    Args:
        outputs: assets; those that are neither Parquet nor tars have none of their own.
    """
    found: dict[str, str] = {}
    loadable = [one for asset in outputs if (one := BY_ASSET[asset]).kind in _PATTERNS]
    declared = [output for output in loadable if output.kind == loadable[0].kind]
    configs, features = "configs:\n", ""
    for output in loadable:
        path = f"{output.folder}/{CARD}"
        is_tar = output.kind == TARS.kind
        own = (read_bytes(join(root, path)) or b"").decode() if is_tar else _PARQUET_CARD
        own += _REFERRING if report.stages[output.asset].referenced else ""
        found[path] = f"{own.rstrip()}\n\n{card(report, [output.asset])}"
        if output not in declared:
            continue
        name = "default" if len(declared) == 1 else output.folder
        files = f'{{split: train, path: "{output.folder}/{_PATTERNS[output.kind]}"}}'
        configs += f"- config_name: {name}\n  data_files:\n  - {files}\n"
        if is_tar and _FEATURES in own:
            features = _FEATURES + own.partition("\n---\n")[0].partition(_FEATURES)[2] + "\n"
    if found:
        found[CARD] = f"---\n{configs}{features}---\n{_ALL_CARD}{card(report, outputs)}"
    return {path: text.encode() for path, text in found.items()}


def _of(report: Report, outputs: Sequence[str]) -> list[Stage]:
    return [report.stages[asset] for asset in outputs if asset in report.stages]


def _markdown(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table, and an empty one; texts of data stay texts."""
    rule = ["---", *("---:" for _ in heads[1:])]
    cells = [heads, rule, *([_escaped(cell) for cell in row] for row in rows)]
    return [*(f"| {' | '.join(row)} |" for row in cells), ""]


_MARKUP: Final = re.compile(r"([\\`*_{}\[\]()#+!|~$<>&@:-])")


def _escaped(words: str) -> str:
    """Return text as Markdown that shows it as it is, in one line."""
    plain = " ".join(words.split())
    return (
        _MARKUP.sub(lambda found: f"&#{ord(found[1])};", plain) if re.search(r"[^\w ,.%−-]", plain) else plain
    )
