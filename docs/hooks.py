"""What mkdocs does beyond its configuration: the README is the first page, folders fill their section, and
the reference knows the modules of public names.
"""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

from mm_assets import MODULES

ROOT = Path(__file__).parent.parent

# The façade derives its `__all__` from a table, which griffe cannot follow: it reads sources as text.
# The reference names the modules that define them instead.
logging.getLogger("mkdocs.plugins.griffe").addFilter(
    lambda record: "__all__: MODULES" not in record.getMessage()
)


def on_config(config: Any) -> Any:
    """Put the pages of a folder where the navigation names it (``guides/``), by name."""
    config.nav = [_filled(section, Path(config.docs_dir)) for section in config.nav]
    config.nav = [section for section in config.nav if next(iter(section.values()))]
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the README as the page ``index.md``; its links are relative to the folder above."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    files.append(File.generated(config, "index.md", content=re.sub(r"\]\(docs/", "](", text)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Put the module in front of a public name that the reference shows (``::: Features``)."""
    return re.sub(r"(?m)^::: (\w+)$", lambda name: f"::: {MODULES[name[1]]}.{name[1]}", markdown)


def _filled(section: dict[str, Any], docs: Path) -> dict[str, Any]:
    ((title, entries),) = section.items()
    if isinstance(entries, str):
        return section
    filled: list[Any] = []
    for entry in entries:
        if isinstance(entry, str) and entry.endswith("/"):
            listed = set(map(str, entries))
            pages = [f"{entry}{page.name}" for page in sorted((docs / entry).glob("*.md"))]
            filled += [page for page in pages if page not in listed]
        else:
            filled.append(entry)
    return {title: filled}
