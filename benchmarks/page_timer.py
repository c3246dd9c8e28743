"""Seconds until pages of the UI have their data: `timed_pages` runs this file in the clients' environment.

A page is done when it shows a text, and none of its GraphQL queries has been under way for a second. It is
opened in a browser without cache, so each figure has the loading of the UI's own code in it.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

CHROMIUM = Path("/usr/bin/chromium")
PYTHON = Path(__file__).resolve().parents[1] / ".venv-clients" / "bin" / "python"
_QUIET = 1.0  # seconds
_LIMIT = 120.0


@dataclass(frozen=True)
class TimedPage:
    """A page: ``seconds`` until it is done, its slowest query and the seconds and bytes of that."""

    name: str
    seconds: float
    query: str
    query_seconds: float
    query_bytes: int


def timed_pages(pages: Mapping[str, tuple[str, str]]) -> list[TimedPage]:
    """Open pages by name, one after the other.

    Args:
        pages: the address of each, and a regular expression of a text that it must show.

    Raises:
        RuntimeError: a page does not come to show its text.
    """
    done = subprocess.run(
        [str(PYTHON), __file__, json.dumps(dict(pages))], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(done.stderr[-4000:])
    return [TimedPage(**page) for page in json.loads(done.stdout.splitlines()[-1])]


def _main() -> None:
    from playwright.sync_api import Request, sync_playwright

    found = []
    with sync_playwright() as playwright:
        flags = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), headless=True, args=flags)
        for name, (url, text) in json.loads(sys.argv[1]).items():
            page = browser.new_page(viewport={"width": 1600, "height": 1000})
            started: dict[Request, float] = {}
            ended: list[tuple[float, float, Request]] = []

            def begin(request: Request, started: dict[Request, float] = started) -> None:
                if request.url.partition("?")[0].endswith("/graphql"):
                    started[request] = time.monotonic()

            def end(
                request: Request,
                started: dict[Request, float] = started,
                ended: list[tuple[float, float, Request]] = ended,
            ) -> None:
                if (at := started.pop(request, None)) is not None:
                    ended.append((time.monotonic(), time.monotonic() - at, request))

            page.on("request", begin)
            page.on("requestfinished", end)
            page.on("requestfailed", end)
            opened = time.monotonic()
            page.goto(url, wait_until="commit")
            page.get_by_text(re.compile(text)).first.wait_for(state="attached", timeout=_LIMIT * 1000)
            shown = time.monotonic()
            while time.monotonic() - opened < _LIMIT:
                page.wait_for_timeout(100)
                last = max((at for at, _, _ in ended), default=None)
                if last is not None and not started and time.monotonic() - last > _QUIET:
                    break
            slowest = max(ended, key=lambda each: each[1])
            response = slowest[2].response()
            found.append(
                {
                    "name": name,
                    "seconds": max(shown, *(at for at, _, _ in ended)) - opened if not started else _LIMIT,
                    "query": json.loads(slowest[2].post_data or "{}").get("operationName"),
                    "query_seconds": slowest[1],
                    "query_bytes": len(response.body()) if response is not None else 0,
                }
            )
            page.close()
        browser.close()
    print(json.dumps(found))


if __name__ == "__main__":
    _main()
