"""Frame of a self-contained HTML page: styles, a strict content security policy, escaping."""

from __future__ import annotations

import re
from html import escape
from typing import Final

# Even if text of the data came through as markup, the browser would load and run nothing.
_POLICY: Final = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'"
# Characters that HTML has no place for, and those that reorder the text around them.
_INVISIBLE: Final = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ufdd0-\ufdef\ufffe\uffff]"
)
_STYLE: Final = """
:root { color-scheme: light dark; --line: #8884; --dim: #777; --bad: #b3261e; --flag: #9a6700; }
body { font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem; padding: 0 1rem; }
h1, h2 { overflow-wrap: anywhere; line-height: 1.25; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
p, pre, dd, td { overflow-wrap: anywhere; }
.text { white-space: pre-wrap; margin: 0; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .85rem; }
th, td { border-bottom: 1px solid var(--line); padding: .25rem .75rem .25rem 0; text-align: start; }
th, td { vertical-align: top; }
th { font-weight: 600; white-space: nowrap; }
img { display: block; max-width: 100%; max-height: 30rem; height: auto; width: auto; object-fit: contain; }
.note { color: var(--dim); font-size: .85rem; }
"""


def page(title: str, body: str, style: str = "") -> str:
    """Return a whole page.

    Args:
        title: plain text.
        body: HTML, in which all text of data has gone through `text`.
        style: further CSS.
    """
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="referrer" content="no-referrer">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{text(title)}</title>\n<style>{_STYLE}{style}</style>\n</head>\n"
        f"<body>\n{body}\n</body>\n</html>\n"
    )


def text(value: str) -> str:
    """Return text for HTML, in an element or a quoted attribute.

    Control characters, and those that reverse the direction of what stands beside them, become visible.
    """
    visible = _INVISIBLE.sub(lambda match: match[0].encode("unicode_escape").decode(), value)
    return escape(visible.encode("utf-8", "backslashreplace").decode())
