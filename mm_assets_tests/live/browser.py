"""A screenshot of a page once the texts it must show are there: Debian's chromium, driven by playwright.

playwright lives in the clients' environment, so ``screenshot`` starts this very file there, by path: once, as
the browser takes long to start. Each page has a context of its own, without what others have left.
"""

import argparse
import functools
import json
import select
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

CHROMIUM = Path("/usr/bin/chromium")
CLIENTS_PYTHON = Path(__file__).resolve().parents[2] / ".venv-clients" / "bin" / "python"


class PageError(RuntimeError):
    """The page did not come to show what it must."""


def screenshot(
    url: str,
    png: Path,
    texts: Sequence[str] = (),
    *,
    menus: Sequence[str] = (),
    clicks: Sequence[str] = (),
    inner_tabs: Sequence[str] = (),
    images: Sequence[str] = (),
    requested: Sequence[str] = (),
    seconds: float = 60,
    size: tuple[int, int] = (1600, 1000),
) -> None:
    """Open ``url``, and the menus beside the buttons named ``menus``, click the elements with the texts
    ``clicks`` in turn, then the ``inner_tabs`` (of two tabs of that name, the one inside the other's page),
    wait until every one of ``texts`` is visible, for each of ``images`` a picture whose address begins with
    it and that can be drawn, and until the page asked for each address ``requested``, then write ``png``.
    Raises PageError, with what the page does show, when they do not come."""
    if not CLIENTS_PYTHON.exists():
        raise PageError(f"{CLIENTS_PYTHON} is missing: run clients/install")
    if not CHROMIUM.exists():
        raise PageError(f"{CHROMIUM} is missing: apt-get install --no-install-recommends chromium")
    command = [url, png, f"--seconds={seconds}", "--size", *size]
    command += [f"--text={text}" for text in texts] + [f"--click={text}" for text in clicks]
    command += [f"--menu={text}" for text in menus]
    command += [f"--inner-tab={text}" for text in inner_tabs] + [f"--image={start}" for start in images]
    command += [f"--requested={address}" for address in requested]
    waits = [texts, menus, clicks, inner_tabs, images, requested]
    limit = seconds * (1 + sum(map(len, waits))) + 60
    browser = _browser()
    assert browser.stdin is not None and browser.stdout is not None
    browser.stdin.write(json.dumps([str(part) for part in command]) + "\n")
    browser.stdin.flush()
    answered, _, _ = select.select([browser.stdout], [], [], limit)
    answer = browser.stdout.readline() if answered else ""
    if not answer:  # the next page has another one
        browser.kill()
        _browser.cache_clear()
        raise PageError(f"no answer from the browser within {limit:.0f} s, or it has ended")
    if told := json.loads(answer):
        raise PageError(told[-4000:])


@functools.cache
def _browser() -> subprocess.Popen[str]:
    """A process that takes pictures until its input ends, which is when this process does."""
    command = [str(CLIENTS_PYTHON), __file__]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _main() -> None:
    """Answer each line of arguments, as JSON, with what went wrong, or null."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # Root needs --no-sandbox; containers have a /dev/shm too small for a page of some size.
        flags = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), headless=True, args=flags)
        for line in sys.stdin:
            print(json.dumps(_picture(browser, json.loads(line))), flush=True)
        browser.close()


def _picture(browser: Any, arguments: list[str]) -> str | None:
    from playwright.sync_api import Error

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("png", type=Path)
    parser.add_argument("--text", action="append", default=[])
    parser.add_argument("--menu", action="append", default=[])
    parser.add_argument("--click", action="append", default=[])
    parser.add_argument("--inner-tab", action="append", default=[])
    parser.add_argument("--image", action="append", default=[])
    parser.add_argument("--requested", action="append", default=[])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--size", type=int, nargs=2, default=(1600, 1000))
    options = parser.parse_args(arguments)
    width, height = options.size
    page = browser.new_page(viewport={"width": width, "height": height})
    page.set_default_timeout(options.seconds * 1000)
    waiting_for = f"an answer of {options.url}"
    try:
        page.goto(options.url)
        for text in options.menu:
            waiting_for = f"the button {text!r} with a menu beside it"
            page.get_by_role("button", name=text).locator("xpath=following::button[1]").first.click()
        for text in options.click:
            waiting_for = f"the element to click {text!r}"
            page.get_by_text(text).first.click()
        for text in options.inner_tab:
            waiting_for = f"the inner tab {text!r}"
            page.get_by_role("tab", name=text, exact=True).nth(1).click()
        for text in options.text:
            waiting_for = f"the text {text!r}"
            # Pages keep hidden copies of a text (tooltips, menus): any visible one counts.
            page.get_by_text(text).filter(visible=True).first.wait_for(state="visible")
        for start in options.image:
            waiting_for = f"a picture of {start!r}"
            drawn = """start => [...document.images].some(
                image => image.src.startsWith(start) && image.complete && image.naturalWidth > 40)"""
            page.wait_for_function(drawn, arg=start)
        for address in options.requested:
            waiting_for = f"a request for {address!r}"
            page.wait_for_function(
                "address => [...document.images].some(image => image.src === address)", arg=address
            )
        page.wait_for_timeout(500)  # let transitions come to rest
        page.screenshot(path=str(options.png))
        return None
    except Error as error:
        body = page.inner_text("body", timeout=5000)
        return f"waited in vain for {waiting_for}: {error.message.splitlines()[0]}\npage: {body[:2000]}"
    finally:
        page.close()


if __name__ == "__main__":
    _main()
