"""Measures by a tiny CLIP model beside what its library computes directly: clip_measures.py FOLDER

The folder has models in ``one`` and ``two``. Prints a JSON object.
"""

import io
import json
import os
import shutil
import socket
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from mm_assets.filters.measure import digest_of_scores
from mm_assets.filters.measures import selected_measures
from mm_assets.filters.scores import ImageScores, score_table
from mm_assets.formats.parquet import publish_table
from mm_assets.model.schema import INTERLEAVED_SCHEMA

NAMES = ("clip_similarity", "clip_embedding")
CALLS: list[str] = []


def no_network(*arguments: Any, **_: Any) -> Any:
    CALLS.append(repr(arguments))
    raise OSError("no network here")


def png(number: int, width: int, height: int, mode: str = "RGB") -> bytes:
    """A picture of a few soft spots, different for each number."""
    spots = np.random.default_rng(number).integers(0, 256, (4, 4, len(mode)), np.uint8)
    picture = Image.fromarray(spots.squeeze(), mode).resize((width, height), Image.Resampling.BICUBIC)
    out = io.BytesIO()
    picture.save(out, "PNG")
    return out.getvalue()


def samples() -> dict[str, list[str | bytes]]:
    # Of these the square has corners on whole pixels, so that it is the library's to the last bit.
    shapes = [(96, 64), (32, 128), (33, 33), (64, 64), (16, 8), (1024, 32)]
    found: dict[str, list[str | bytes]] = {}
    for number in range(40):
        texts: list[str | bytes] = [f"the text {number} and {part}" for part in range(number % 4)]
        images = [
            png(10 * number + index, *shapes[(number + index) % len(shapes)], ("RGB", "RGBA", "L")[index])
            for index in range(1 + number % 3)
        ]
        found[f"s{number}"] = [*texts, *images]
    found["blank"] = ["  \n", "", png(900, 40, 40)]
    found["long"] = ["word " * 1000, "the end", png(901, 40, 40)]
    found["many"] = [*(f"text {number}" for number in range(1000)), png(902, 40, 40)]
    found["damaged"] = ["a text", png(903, 64, 64)[:-60], png(904, 64, 64)]
    return found


def table_of(given: dict[str, list[str | bytes]]) -> pa.Table:
    rows = []
    for name, contents in given.items():
        rows.append({"sample_id": name, "position": -1, "modality": "metadata"})
        for position, content in enumerate(contents):
            kind, column = (
                ("text", "text_content") if isinstance(content, str) else ("image", "binary_content")
            )
            rows.append({"sample_id": name, "position": position, "modality": kind, column: content})
    whole = [{name: row.get(name) for name in INTERLEAVED_SCHEMA.names} for row in rows]
    return pa.Table.from_pylist(whole, schema=INTERLEAVED_SCHEMA)


def measured(table: pa.Table) -> dict[str, Any]:
    scores = score_table(table, selected_measures(NAMES).images)
    return {f"{row['sample_id']} {row['position']}": row for row in scores.to_pylist()}


def by_library(folder: Path, given: dict[str, list[str | bytes]]) -> dict[str, tuple[float | None, Any]]:
    """Similarity and embedding of each sound image, as Curator's stage has transformers compute them."""
    import torch
    from transformers import CLIPModel, CLIPTokenizer
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

    model = CLIPModel.from_pretrained(folder).eval()
    tokenizer = CLIPTokenizer.from_pretrained(folder)
    processor = CLIPImageProcessorPil.from_pretrained(folder)
    found: dict[str, tuple[float | None, Any]] = {}
    for name, contents in given.items():
        texts = [text.strip() for text in contents if isinstance(text, str) and text.strip()]
        for position, content in enumerate(contents):
            if isinstance(content, str) or (name, position) == ("damaged", 1):
                continue
            picture = np.asarray(Image.open(io.BytesIO(content)).convert("RGB"))
            with torch.inference_mode():
                pixels = processor(images=[picture], return_tensors="pt")["pixel_values"]
                image = model.get_image_features(pixel_values=pixels).pooler_output
                image = image / torch.linalg.vector_norm(image, dim=-1, keepdim=True)
                best = None
                if texts:
                    tokens = tokenizer(text=texts, return_tensors="pt", padding=True, truncation=True)
                    text = model.get_text_features(**tokens).pooler_output
                    text = text / torch.linalg.vector_norm(text, dim=-1, keepdim=True)
                    best = float((image @ text.T).max())
            found[f"{name} {position}"] = (best, image[0].numpy())
    return found


def main(folder: Path, given_table: Path) -> dict[str, Any]:
    socket.socket.connect = no_network  # type: ignore[assignment, method-assign]
    socket.getaddrinfo = no_network
    os.environ["MM_CLIP_MODEL"] = str(folder / "1")
    told: dict[str, Any] = {}
    given = samples()
    table = table_of(given)
    measures = selected_measures(NAMES).images
    told["loaded to plan"] = sorted({"torch", "transformers"} & sys.modules.keys())
    values = measured(table)
    told["given"] = [
        [row["sample_id"], row["position"], row["clip_similarity"]]
        for row in measured(pq.read_table(given_table)).values()
    ]
    told["errors"] = {place: row["decode_error"] for place, row in values.items() if row["decode_error"]}
    told["without text"] = [
        place for place, row in values.items() if not row["decode_error"] and row["clip_similarity"] is None
    ]

    direct = by_library(folder / "1", given)
    told["same images"] = sorted(direct) == sorted(
        place for place, row in values.items() if not row["decode_error"]
    )
    told["spread"] = float(np.ptp([best for best, _ in direct.values() if best is not None]))
    told["similarity off by"] = max(
        abs(values[place]["clip_similarity"] - best)
        for place, (best, _) in direct.items()
        if best is not None and place != "many 1000"
    )
    told["of many texts, no more than of all"] = (
        values["many 1000"]["clip_similarity"] <= direct["many 1000"][0]
    )
    told["embedding off by"] = float(
        max(np.abs(values[place]["clip_embedding"] - v).max() for place, (_, v) in direct.items())
    )

    turned = measured(table_of(dict(reversed(given.items()))))
    alone: dict[str, Any] = {}
    for name, contents in given.items():
        alone |= measured(table_of({name: contents}))
    told["other order"] = turned == values
    told["one sample at a time"] = alone == values

    scores = score_table(table, measures)
    publish_table(str(folder / "scores.parquet"), scores)
    stored = pq.read_table(folder / "scores.parquet")
    told["type"] = str(stored.schema.field("clip_embedding").type)
    told["read back"] = stored.equals(scores)
    known = ImageScores.read(str(folder / "scores.parquet"), digest_of_scores(scores))
    without_bytes = table.drop_columns(["binary_content"])
    told["taken over"] = score_table(without_bytes, measures, known).equals(scores)

    shutil.copytree(folder / "1", folder / "moved")
    os.environ["MM_CLIP_MODEL"] = str(folder / "moved")
    moved = selected_measures(NAMES).images
    told["missing of the same model elsewhere"] = len(known.missing(moved))
    shutil.copy(folder / "2" / "model.safetensors", folder / "moved")
    try:
        score_table(table, moved)
    except ValueError as error:
        told["exchanged"] = str(error).removeprefix(str(folder))
    os.environ["MM_CLIP_MODEL"] = str(folder / "2")
    others = selected_measures(NAMES).images
    told["missing of another model"] = len(known.missing(others))
    again = score_table(table, others, known)
    told["another model"] = again.column("clip_similarity") != scores.column("clip_similarity")
    told["network"] = CALLS
    return told


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), Path(sys.argv[2]))))
