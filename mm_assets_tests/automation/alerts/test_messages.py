"""Causes as text: text of data stays within its line, links lead to pages."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from mm_assets.automation.alerts import Cause, Kind, Origin, alert, all_clear

RUN = Origin("0123456789", is_backfill=False)
_PIECES = (
    "http://a.test/x",
    "//a.test/x",
    "www.a.test",
    "@everyone",
    "[r]: ",
    "](",
    "<img src=x>",
    "mailto:a@b.c",
)
NOW = 1_800_000_000.0  # 2027-01-15T08:00Z


def test_text_of_data_stays_in_its_line() -> None:
    names = {"a\nb": "line\r\nFrom: me\x1b[31m" + "x" * 500}
    body = alert(Cause(Kind.NOT_LANDED, "curated", origin=RUN, shards=1, names=names), "", NOW).body
    (line,) = (line for line in body.splitlines() if line.startswith("-"))
    assert line.startswith("- a b: line From: me [31mxxx") and line.endswith("x…")
    assert len(line) == 320


def test_names_in_the_data_call_nobody_in_a_chat() -> None:
    cause = Cause(Kind.NOT_LANDED, "curated", origin=RUN, shards=1, names={"<!channel>": "@everyone a@b.c"})
    assert "- < !channel>: @ everyone a@b.c" in alert(cause, "", NOW).body.splitlines()


@pytest.mark.parametrize(
    "text",
    [
        "![x](http://a.test/x.png)",
        "[x](//a.test/x) ![x][r] [r]: //a.test/x",
        "<http://a.test/x|click> <https://a.test> <a@b.c> <img src=//a.test/x> <!-- -->",
        "http://a.test/x HTTPS://a.test/x ftp://a.test www.a.test/x",
        "@everyone @here @all <@&123> <!here>",
    ],
)
def test_text_of_data_is_no_link_or_picture_in_a_chat(text: str) -> None:
    _assert_plain(text)


@given(st.lists(st.sampled_from([*"![]()<>:/\\`&;#|@*_ \n\t\u200bx", *_PIECES]), max_size=30).map("".join))
def test_no_text_of_data_is_a_link_or_picture_in_a_chat(text: str) -> None:
    _assert_plain(text)


def _assert_plain(text: str) -> None:
    """As Markdown with HTML, and with what chats make links of themselves."""
    names = {text: "![r]", "b": text}
    body = alert(Cause(Kind.NOT_LANDED, "curated", origin=RUN, shards=2, names=names), "", NOW).body
    shown = list(MarkdownIt("commonmark").parse(body))
    shown += [child for token in shown for child in token.children or ()]
    found = {token.type for token in shown} & {"link_open", "image", "html_block", "html_inline"}
    assert not found
    assert not re.search(
        r"(https?|ftp)://\S|www\.\S|@(everyone|here|channel|all)|<[!@#]", body, re.IGNORECASE
    )


def test_the_title_is_one_line_and_names_the_run() -> None:
    title = alert(Cause(Kind.RUN_FAILED, "prove\nall", origin=RUN), "", NOW).title
    assert title == "mm_assets: Failed: prove all in run 01234567"


def test_a_shard_that_lost_too_much_is_told_as_such() -> None:
    reason = "80% of it would be lost, and MM_MAX_LOSS is 0.5: …"
    cause = Cause(Kind.NOT_LANDED, "curated", origin=RUN, shards=1, of=4, names={"a": reason})
    assert alert(cause, "", NOW).title == (
        "mm_assets: 1 of 4 shards did not land: curated (quarantine share over MM_MAX_LOSS) in run 01234567"
    )


def test_links_lead_to_the_page_to_look_at_first() -> None:
    backfill = Origin("abcdefgh", is_backfill=True)
    found = {
        kind: alert(Cause(kind, "x", "y", origin), "http://ui/", NOW).body.splitlines()[-1]
        for kind, origin in [*((kind, backfill) for kind in Kind), (Kind.STALE, None)]
    }
    assert found == {
        Kind.CHECK: "Page: http://ui/assets/x?view=checks&checkDetail=y",
        Kind.NOT_LANDED: "Page: http://ui/assets/x?view=partitions",
        Kind.RUN_FAILED: "Page: http://ui/runs/b/abcdefgh",
        Kind.HANGING: "Page: http://ui/runs/b/abcdefgh",
        Kind.LOSS: "Page: http://ui/assets/x",
        Kind.DRIFT: "Page: http://ui/assets/x",
        Kind.STALE: "Page: http://ui/assets",
        Kind.TICKS: "Page: http://ui/automation",
    }


def test_without_an_address_there_is_no_link() -> None:
    bodies = [alert(Cause(Kind.CHECK, "x", "y", RUN), "", NOW).body, all_clear({"a": NOW, "b": NOW}, "").body]
    assert not any("Page:" in body for body in bodies)


def test_what_to_do_of_raw_shards_that_are_gone_is_not_to_make_them_again() -> None:
    advice = {
        check: next(
            line
            for line in alert(Cause(Kind.CHECK, "raw_shards", check, RUN), "", NOW).body.splitlines()
            if line.startswith("What to do: ")
        )
        for check in ("present", "integrity")
    }
    assert "mm-assets retire" in advice["present"] and "mm-assets run" not in advice["present"]
    assert advice["integrity"].endswith("mm-assets run --changed --failed")
