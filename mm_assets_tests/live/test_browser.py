"""The screenshot helper on a page that takes a moment to say what it has to say."""

import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from PIL import Image

from mm_assets_tests.live.browser import PageError, screenshot

pytestmark = pytest.mark.clients

PAGE = """<!doctype html><title>t</title><body style="margin:0"><p hidden>all green</p>
<p onclick="document.body.style.background='#00ff00';
            document.getElementById('late').textContent='all green'">push</p>
<p id="late">wait</p></body>"""


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("page")
    (folder / "index.html").write_text(PAGE)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    thread.join()
    server.server_close()


def test_picture_is_taken_once_the_text_is_there(url: str, tmp_path: Path) -> None:
    screenshot(url, tmp_path / "page.png", ["all green"], clicks=["push"], seconds=20, size=(320, 200))
    with Image.open(tmp_path / "page.png") as image:
        assert image.size == (320, 200)
        assert image.convert("RGB").getpixel((310, 190)) == (0, 255, 0)


def test_text_that_never_shows_is_named(url: str, tmp_path: Path) -> None:
    with pytest.raises(PageError, match=r"waited in vain for the text 'all green'(?s:.)*page: push\s+wait"):
        screenshot(url, tmp_path / "page.png", ["all green"], seconds=2)
    assert not (tmp_path / "page.png").exists()
