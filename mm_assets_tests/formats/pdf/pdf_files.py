"""PDF files made by hand: texts in Helvetica, pictures, and an encrypted file."""

from __future__ import annotations

import io
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from PIL import Image

WIDTH, HEIGHT = 600, 800
_FORM = "/Type /XObject /Subtype /Form /BBox [0 0 9 9]"


def jpeg(*colour: int, width: int = 60, height: int = 40, mode: str = "RGB") -> bytes:
    """Return a JPEG of one colour."""
    file = io.BytesIO()
    Image.new(mode, (width, height), colour if len(colour) > 1 else colour[0]).save(file, "JPEG")
    return file.getvalue()


@dataclass
class Picture:
    """An image object: stream and dictionary, and where it is drawn (left, bottom, width, height)."""

    data: bytes
    dictionary: str
    place: tuple[float, float, float, float]
    further: dict[str, bytes] = field(default_factory=dict)  # key of the dictionary -> a whole object


def jpeg_picture(
    picture: bytes,
    place: tuple[float, float, float, float],
    more: str = "",
    data: bytes | None = None,
    **further: bytes,
) -> Picture:
    """Return a JPEG as an image object, with ``data`` in its place if there are any."""
    with Image.open(io.BytesIO(picture)) as image:
        space = {"L": "DeviceGray", "RGB": "DeviceRGB", "CMYK": "DeviceCMYK"}[image.mode]
        width, height = image.size
    space = "" if "ColorSpace" in further else f"/ColorSpace /{space}"
    dictionary = f"/Width {width} /Height {height} {space} /BitsPerComponent 8 /Filter /DCTDecode {more}"
    return Picture(picture if data is None else data, dictionary, place, further)


def raw_picture(
    pixels: bytes,
    width: int,
    height: int,
    place: tuple[float, float, float, float],
    more: str = "",
    **further: bytes,
) -> Picture:
    """Return RGB pixels, packed with deflate, as an image object."""
    dictionary = (
        f"/Width {width} /Height {height} /ColorSpace /DeviceRGB "
        f"/BitsPerComponent 8 /Filter /FlateDecode {more}"
    )
    return Picture(zlib.compress(pixels), dictionary, place, further)


def stream(data: bytes, dictionary: str = "") -> bytes:
    """Return a stream object."""
    return f"<< {dictionary} /Length {len(data)} >>\nstream\n".encode() + data + b"\nendstream"


def text(words: str, x: float, y: float, size: float = 10) -> bytes:
    """Return the operators that write one line at a place, counted from the page's bottom left."""
    escaped = words.replace("\\", r"\\").replace("(", r"\(").replace(")", r"\)")
    return f"BT /F1 {size} Tf {x} {y} Td ({escaped}) Tj ET\n".encode("cp1252")


def lines(words: Sequence[str], x: float, top: float, size: float = 10, step: float = 12) -> bytes:
    """Return the operators that write lines below each other."""
    return b"".join(text(line, x, top - number * step, size) for number, line in enumerate(words))


@dataclass
class Page:
    """A page: operators of its texts, and pictures."""

    texts: bytes = b""
    pictures: Sequence[Picture] = ()
    more: str = ""
    forms: dict[str, bytes] = field(default_factory=dict)  # name in the page's resources -> a whole object
    first: Sequence[bytes] = ()  # objects in front of all others of the page


def pdf(pages: Sequence[Page], info: str = "", trailer: str = "", further: Sequence[bytes] = ()) -> bytes:
    """Return a PDF of these pages.

    Args:
        info: entries of the document's information dictionary.
        trailer: further entries of the trailer; ``{further}`` is the number of the first further object.
        further: objects that nothing but the trailer names.
    """
    objects: list[bytes] = [
        b"",
        b"",
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding >>",
    ]

    def add(body: bytes) -> int:
        objects.append(body)
        return len(objects)

    kids = []
    for page in pages:
        content, resources = page.texts, ""
        for body in page.first:
            add(body)
        for name, body in page.forms.items():
            resources += f" /{name} {add(body)} 0 R"
        for number, picture in enumerate(page.pictures):
            keys = "".join(f" /{key} {add(body)} 0 R" for key, body in picture.further.items())
            entries = f"/Type /XObject /Subtype /Image {picture.dictionary}{keys}"
            image = add(stream(picture.data, entries))
            left, bottom, width, height = picture.place
            content += f"q {width} 0 0 {height} {left} {bottom} cm /Im{number} Do Q\n".encode()
            resources += f" /Im{number} {image} 0 R"
        contents = add(stream(content))
        kids.append(
            add(
                f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 {WIDTH} {HEIGHT}] /Contents {contents} 0 R "
                f"/Resources << /Font << /F1 3 0 R >> /XObject <<{resources} >> >> {page.more} >>".encode()
            )
        )
    objects[0] = b"<< /Type /Catalog /Pages 2 0 R >>"
    references = " ".join(f"{kid} 0 R" for kid in kids)
    objects[1] = f"<< /Type /Pages /Kids [{references}] /Count {len(kids)} >>".encode()
    if info:
        trailer += f" /Info {add(f'<< {info} >>'.encode())} 0 R"
    trailer = trailer.replace("{further}", str(len(objects) + 1))
    for body in further:
        add(body)
    return _file(objects, trailer)


def _file(objects: Sequence[bytes], trailer: str) -> bytes:
    data = b"%PDF-1.4\n"
    offsets = []
    for number, body in enumerate(objects, 1):
        offsets.append(len(data))
        data += f"{number} 0 obj\n".encode() + body + b"\nendobj\n"
    start = len(data)
    data += f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n".encode()
    data += b"".join(f"{offset:010} 00000 n \n".encode() for offset in offsets)
    ends = f"trailer\n<< /Size {len(objects) + 1} /Root 1 0 R {trailer} >>\nstartxref\n{start}\n%%EOF\n"
    return data + ends.encode()


def self_drawing() -> bytes:
    """Return a PDF with a form that draws itself, twice."""
    form = stream(b"/X Do /X Do", f"{_FORM} /Resources << /XObject << /X 4 0 R >> >>")
    return pdf([Page(b"/X Do\n", forms={"X": form})])


def packed_twice(size: int) -> bytes:
    """Return a small PDF whose page has operators of ``size`` bytes, packed twice."""
    packer = zlib.compressobj(1)
    block = bytes(1 << 20)
    inner = b"".join([*(packer.compress(block) for _ in range(size >> 20)), packer.flush()])
    form = stream(zlib.compress(inner), f"{_FORM} /Filter [/FlateDecode /FlateDecode]")
    return pdf([Page(b"/X Do\n", forms={"X": form})])


def drawn_often(times: int, side: int) -> bytes:
    """Return a PDF of one page that draws one picture many times."""
    picture = raw_picture(bytes(side * side * 3), side, side, (0, 0, 0, 0))
    entries = f"/Type /XObject /Subtype /Image {picture.dictionary}"
    draws = (f"q 1 0 0 1 {at % WIDTH} {at // WIDTH} cm /I Do Q\n".encode() for at in range(times))
    return pdf([Page(b"".join(draws), forms={"I": stream(picture.data, entries)})])


def encrypted() -> bytes:
    """Return a PDF that names a password that is not empty: no key of the standard handler fits."""
    handler = f"<< /Filter /Standard /V 1 /R 2 /P -4 /O <{'11' * 32}> /U <{'22' * 32}> >>".encode()
    identity = f"[<{'33' * 16}> <{'33' * 16}>]"
    return pdf(
        [Page(text("secret", 50, 700))], trailer=f"/Encrypt {{further}} 0 R /ID {identity}", further=[handler]
    )
