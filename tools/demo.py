"""Demo: small example shards in both raw layouts, taken through the whole graph by ``make demo``.

`make_shards` writes the shards, with generated photographs of noise and colour. `demo_thresholds` are filter
thresholds for them, so that the demo shows a filter at work. `main` runs the graph and prints a table of the
outputs.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import random
import shlex
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from mm_assets.headless.instance import watch_for_interrupts
from mm_assets.terminal import run_command

_WORDS = (
    "light field sensor north river stone glass paper signal orbit leaf copper night garden Größe 数据 café"
).split()
_SIZES = ((480, 320), (320, 480), (400, 400), (640, 200), (300, 290), (360, 240))


def make_shards(
    folder: Path, members: int = 3, pdf: int = 2, samples: int = 12, seed: str = ""
) -> list[Path]:
    """Write example shards; the same call writes the same bytes, and existing shards are left alone.

    Args:
        folder: where to write.
        members: number of shards with one file per image.
        pdf: number of shards with one multi-frame TIFF per sample.
        samples: samples per shard.
        seed: another seed gives other samples.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for number in range(members + pdf):
        is_pdf = number >= members
        path = folder / f"{'pdf' if is_pdf else 'web'}-{number - members if is_pdf else number:05d}.tar"
        paths.append(path)
        if not path.exists():
            _write(path, [_sample(f"{seed}{path.name}/{i}", is_pdf) for i in range(samples)])
    return paths


def _write(path: Path, samples: Sequence[list[tuple[str, bytes]]]) -> None:
    temporary = path.with_suffix(".tmp")
    with tarfile.open(temporary, "w", format=tarfile.USTAR_FORMAT) as tar:
        for members in samples:
            for name, data in members:
                info = tarfile.TarInfo(name)
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    temporary.rename(path)


def _sample(seed: str, is_pdf: bool) -> list[tuple[str, bytes]]:
    rng = random.Random(seed)
    key = f"{rng.getrandbits(96):024x}"
    texts: list[str | None] = []
    images: list[str | None] = []
    pictures: list[Image.Image] = []
    details: list[dict[str, Any]] = []
    for position in range(rng.randint(4, 9)):
        if rng.random() < 0.5:
            texts.append(" ".join(rng.choices(_WORDS, k=rng.randint(8, 40))))
            images.append(None)
        else:
            picture = _picture(rng)
            pictures.append(picture)
            details.append({"width": picture.width, "height": picture.height, "page": position // 3})
            texts.append(None)
            images.append(
                f"page_{position // 3}_image_{position}"
                if is_pdf
                else f"{key}.{position}.{rng.choice(['jpg', 'png', 'webp'])}"
            )
    payload = {
        "url": f"https://example.org/{key[:2]}/{key}",
        "texts": texts,
        "images": images,
        "image_metadata": details,
        "previous_word_count": rng.randint(100, 9000),
        "language_id_whole_page_fasttext": {"en": round(rng.uniform(0.5, 1), 6)},
    }
    members = [(f"{key}.json", json.dumps(payload, ensure_ascii=False).encode())]
    if is_pdf and pictures:
        members.append((f"{key}.tiff", _encoded(pictures, "TIFF", compression="jpeg")))
    elif not is_pdf:
        names = [name for name in images if name is not None]
        members.extend((name, _encoded([p], _format(name))) for name, p in zip(names, pictures, strict=True))
    return members


def _picture(rng: random.Random) -> Image.Image:
    width, height = rng.choice(_SIZES)
    colours = bytes(rng.randrange(256) for _ in range(6 * 4 * 3))
    return Image.frombytes("RGB", (6, 4), colours).resize((width, height), Image.Resampling.BICUBIC)


def _format(name: str) -> str:
    return {"jpg": "JPEG", "png": "PNG", "webp": "WEBP"}[name.rpartition(".")[2]]


def _encoded(pictures: list[Image.Image], kind: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    extra = {"save_all": True, "append_images": pictures[1:]} if kind == "TIFF" else {}
    pictures[0].save(buffer, kind, **extra, **options)
    return buffer.getvalue()


THRESHOLDS = {"MM_MIN_ASPECT_RATIO": "1.0", "MM_MAX_ASPECT_RATIO": "2.0"}


def demo_thresholds() -> dict[str, str]:
    """Return the filter thresholds of the example shards, by variable.

    There are none if the user names shards or a setting of a filter.
    """
    from mm_assets.filters.registry import FILTERS, settings_of
    from mm_assets.settings import variable
    from mm_assets.settings_file import given_settings

    given = given_settings()
    named = ("MM_RAW_SHARDS", *(variable(known.name) for known in settings_of(FILTERS)))
    return {} if any(given.get(name) for name in named) else THRESHOLDS


RAW = Path("demo", "raw")


def main() -> int:
    """Make example shards if needed, materialize every asset for all shards, print the table.

    With ``MM_RAW_SHARDS`` set, those shards are used instead.
    """
    return run_command(_demo)


def _demo() -> int:
    watch_for_interrupts()
    import dagster  # noqa: F401  without it nothing is begun

    from mm_assets.settings_file import given_settings

    if not given_settings().get("MM_RAW_SHARDS"):
        make_shards(RAW)
        if thresholds := demo_thresholds():
            os.environ.update(thresholds)
            values = " ".join(f"{name}={value}" for name, value in thresholds.items())
            print(f"filter of the demo: {values} (without a bound nothing is filtered)")
        os.environ["MM_RAW_SHARDS"] = str(RAW)
    from mm_assets.headless.request import MakeRequest
    from mm_assets.headless.run import run_graph

    return run_graph(MakeRequest())


def _exports() -> int:
    for name, value in demo_thresholds().items():
        print(f"export {name}={shlex.quote(value)}")
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tools.demo", description=main.__doc__)
    parser.add_argument(
        "--exports", action="store_true", help="only print the thresholds, as lines for a shell: `make ui`"
    )
    sys.exit(_exports() if parser.parse_args().exports else main())
