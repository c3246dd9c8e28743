"""The preview as one HTML page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from mm_assets.filters.filter import FLAG
from mm_assets.pages.html_frame import page, text
from mm_assets.preview import summary_lines
from mm_assets.preview.borderline import Borderline, Pick
from mm_assets.preview.bounds import bounds_of
from mm_assets.preview.contents import contents_of
from mm_assets.preview.curves import curve_of, curve_svg, histogram_svg
from mm_assets.preview.stored_scores import StoredScores, shard_name
from mm_assets.preview.study import Study
from mm_assets.sample_view.captions import cut
from mm_assets.sample_view.document import Item

_MOST_TEXT: Final = 300  # characters
_MOST_ID: Final = 60
_STYLE: Final = """
body { max-width: 72rem; }
svg { max-width: 44rem; width: 100%; height: auto; display: block; }
td:not(:first-child) { white-space: nowrap; }
.sheet { display: flex; flex-wrap: wrap; gap: 1rem .75rem; align-items: end; }
.sheet figure { margin: 0; width: 8.5rem; }
.sheet.samples { align-items: start; } .sheet.samples figure { width: 20rem; }
.sheet img { max-height: 8rem; border: 1px solid var(--line); }
.samples img { display: inline-block; max-height: 5rem; margin-inline-end: .25rem; }
figcaption { font-size: .75rem; color: var(--dim); overflow-wrap: anywhere; }
.text { font-size: .8rem; }
h3 { font-size: .9rem; margin: 1.25rem 0 .5rem; }
"""


def preview_page(stored: StoredScores, study: Study) -> str:
    """Return the page: counts, curves and contact sheets.

    Raises:
        ValueError: a curated file is damaged; the message names it.
    """
    picks = [pick for found in study.borderline for pick in (*found.kept, *found.refused)]
    contents = contents_of(stored, picks)
    title = summary_lines.title(stored)
    body = [f"<h1>{text(_sentence(title))}</h1>"]
    body += [f"<p>{text(_sentence(line))}.</p>" for line in summary_lines.summary(study)]
    body += [_note(line) for line in summary_lines.faults(stored, study)]
    if study.counts.filters:
        body += _counts(study)
    else:
        body.append(_note(f"No filter is on; {summary_lines.HOW_TO_SET}"))
    for name, values in study.distributions.items():
        body.append(f"<section>\n<h2>{text(name)}</h2>\n{histogram_svg(name, values)}\n</section>")
    for found in study.borderline:
        body += _section(found, contents)
    return page(title, "\n".join(body), _STYLE)


def _counts(study: Study) -> Iterator[str]:
    rows = summary_lines.count_rows(study)
    yield '<div class="wide">' + _table(summary_lines.HEADS, rows) + "</div>"
    given, dropped = study.counts.given, study.counts.dropped
    amounts = [
        (name, *summary_lines.kept_and_dropped(getattr(given, name), getattr(dropped, name)))
        for name in ("items", "images", "samples")
    ]
    amounts.append(
        ("bytes of images", *summary_lines.kept_and_dropped(given.nbytes, dropped.nbytes, in_bytes=True))
    )
    yield f"<h2>{text(summary_lines.TOGETHER.capitalize())}</h2>"
    yield _table(("", "kept", "dropped"), amounts)


def _section(found: Borderline, contents: Mapping[Pick, Sequence[Item]]) -> Iterator[str]:
    judge, unit = found.filter, summary_lines.unit(found.filter)
    yield f'<section>\n<h2 dir="auto">{text(summary_lines.named(judge))}</h2>'
    bounds = bounds_of(judge)
    for bound in bounds:
        yield curve_svg(curve_of(judge, bound, found.scores), unit)
    if bounds:
        drawn = summary_lines.of_values(found.scores, found.count, unit)
        line = f"The line is the share of {unit} that this filter alone keeps, by the place of its bound; "
        yield _note(line + "grey is the distribution of the score" + (f"; {drawn}" if drawn else ""))
    refused = "Flagged" if judge.action == FLAG else "Dropped"
    for name, picks in (("Kept", found.kept), (refused, found.refused)):
        nearest = ", nearest to the bound first" if bounds else ""
        yield f"<h3>{name}{nearest if picks else ': none'}</h3>"
        if picks:
            kind = "sheet samples" if found.is_of_samples else "sheet"
            figures = "\n".join(_figure(pick, contents.get(pick, ())) for pick in picks)
            yield f'<div class="{kind}">\n{figures}\n</div>'
    yield "</section>"


def _figure(pick: Pick, items: Sequence[Item]) -> str:
    shown = "".join(item.shown or _note(item.error or "") for item in items if item.modality == "image")
    texts = "\n".join(item.text for item in items if item.text is not None)
    if texts:
        shown += f'<p class="text" dir="auto">{text(cut(texts, _MOST_TEXT))}</p>'
    if not items:
        shown = _note("its curated rows are not there")
    place = "" if pick.position is None else f" [{pick.position}]"
    value = summary_lines.number(pick.value)
    caption = f"<b>{text(value)}</b> " if value else ""
    sample, shard = text(cut(pick.sample_id, _MOST_ID)), text(shard_name(pick.file_name))
    caption += f"<bdi>{sample}</bdi>{place} <bdi>{shard}</bdi>"
    return f"<figure>{shown}<figcaption>{caption}</figcaption></figure>"


def _sentence(line: str) -> str:
    return line[0].upper() + line[1:]


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    first = "".join(f"<th>{text(head)}</th>" for head in heads)
    others = "".join("<tr>" + "".join(f"<td>{text(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{first}</tr></thead><tbody>{others}</tbody></table>"


def _note(line: str) -> str:
    return f'<p class="note" dir="auto">{text(line)}</p>'
