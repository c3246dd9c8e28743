"""Table of document layouts: how documents of others name their texts and images, and back.

* `LAYOUTS` has a row for each layout. Tar json, JSON lines and Parquet are read by the same rows.
* `find_layout` looks for one in the names and kinds of a document's fields.
* `fold` makes a document of a sample's rows again: with its skeleton if it came from that layout, else by the
  rules of the layout, which refuses what it cannot hold.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from mm_assets.formats.unfolding import (
    LOOKED_AT,
    REFERENCES,
    FoldError,
    Item,
    Path,
    Row,
    Unfolding,
    image_fields,
    image_of,
    refill,
)

LAYOUT = "layout"  # in `_source` of the metadata row: name, fields and holes
_TYPES_NAMED = 5  # of parts
ROLE, TURN = "role", "turn"  # columns of items

Document = Mapping[str, Any]


@dataclass(frozen=True)
class Look:
    """A look at a document, to find its layout.

    Args:
        document: the fields.
        texts_field: the name that a setting gives to its texts.
        names_images: whether a field has images.
        has_own: whether images belong to it that it does not name.
        reads_images: whether its images are those of interleaved documents, or of pairs.
    """

    document: Document
    texts_field: str
    names_images: bool
    has_own: bool = False
    reads_images: bool = False

    @property
    def has_images(self) -> bool:
        return self.names_images or self.has_own


# Chat: turns of roles.

_TURNS = ("messages", "conversations")
_KEYS = ((ROLE, "content"), ("from", "value"))
_SPEAKERS = ("user", "assistant")


def _is_chat(look: Look) -> bool:
    return bool(_turns_fields(look.document, look.texts_field))


def _turns_fields(document: Document, texts_field: str) -> list[str]:
    found = [name for name in _TURNS if _any(document.get(name), _is_message)]
    return found[:1] or ([texts_field] if _any(document.get(texts_field), _is_exchange) else [])


def _any(value: Any, test: Callable[[Any], bool]) -> bool:
    return isinstance(value, list) and any(map(test, value[:LOOKED_AT]))


def _is_message(value: Any) -> bool:
    return isinstance(value, dict) and any(role in value and content in value for role, content in _KEYS)


def _is_exchange(value: Any) -> bool:
    """Return whether an entry has a text of each speaker, as in the Cauldron and FineVision."""
    return isinstance(value, dict) and all(isinstance(value.get(name), str) for name in _SPEAKERS)


def _unfold_chat(found: Unfolding) -> bool:
    for name in _turns_fields(found.fields, found.texts_field):
        turns = found.take(name)
        for turn, message in enumerate(turns):
            if not isinstance(message, dict):
                continue
            turns[turn] = message = dict(message)
            keys = next((keys for keys in _KEYS if keys[0] in message and keys[1] in message), None)
            if keys is not None:
                columns = _of_turn(message[keys[0]], turn)
                _unfold_content(found, message, (name, turn, keys[1]), columns)
                continue
            for speaker, text in list(message.items()):
                if isinstance(text, str) and speaker in _SPEAKERS:
                    found.add_text(text, (name, turn, speaker), _of_turn(speaker, turn))
    return False


def _of_turn(role: Any, turn: int) -> dict[str, Any]:
    return {ROLE: role, TURN: turn} if isinstance(role, str) else {TURN: turn}


def _unfold_content(found: Unfolding, message: dict[Any, Any], path: Path, columns: dict[str, Any]) -> None:
    content = message[path[-1]]
    if isinstance(content, str):
        found.add_text(content, path, columns)
        return
    if isinstance(content, dict):
        message[path[-1]] = part = dict(content)
        _unfold_part(found, part, path, columns)
    if not isinstance(content, list):
        return
    message[path[-1]] = parts = list(content)
    for index, part in enumerate(parts):
        place = (*path, index)
        if isinstance(part, str):
            found.add_text(part, place, columns, has_tokens=False)
        elif isinstance(part, dict):
            parts[index] = part = dict(part)
            _unfold_part(found, part, place, columns)


_PART_TEXTS = ("text", "value")


def _unfold_part(found: Unfolding, part: dict[str, Any], place: Path, columns: dict[str, Any]) -> None:
    kind = part.get("type")
    key = next((key for key in _PART_TEXTS if isinstance(part.get(key), str)), None)
    if key is not None and kind in ("text", "input_text", None):
        found.add_text(part[key], (*place, key), columns, has_tokens=False)
    elif kind not in ("image", "image_url", "input_image", None):
        found.unread[str(kind)[:40]] = None
    else:
        for key in (*REFERENCES, "value"):
            if (image := image_of(part.get(key))) is not None:
                found.add(found.named(image, (*place, key), place), columns)
                return
        if kind is None:
            found.unread["of no type"] = None
        else:
            found.add_part(place, columns, part.get("index"))


# Interleaved by matched sentences: MMC4.

_TEXT_LIST, _IMAGE_INFO, _MATCHED = "text_list", "image_info", "matched_text_index"
_NAMES_OF_INFO = ("image_name", "raw_url")


def _is_mmc4(look: Look) -> bool:
    document = look.document
    return _any(document.get(_TEXT_LIST), _is_string) and isinstance(document.get(_IMAGE_INFO), list)


def _is_string(value: Any) -> bool:
    return isinstance(value, str)


def _unfold_mmc4(found: Unfolding) -> bool:
    texts = found.take(_TEXT_LIST) if isinstance(found.fields.get(_TEXT_LIST), list) else []
    infos = found.take(_IMAGE_INFO) if isinstance(found.fields.get(_IMAGE_INFO), list) else []
    before: dict[Any, list[tuple[Item, dict[str, Any]]]] = {}
    for index, info in enumerate(infos):
        if not isinstance(info, dict):
            continue
        infos[index] = info = dict(info)
        place = (_IMAGE_INFO, index)
        for key in _NAMES_OF_INFO:
            if (image := image_of(info.get(key))) is not None:
                columns = {name: value for name, value in info.items() if name != key}
                matched = info.get(_MATCHED)
                is_matched = type(matched) is int and 0 <= matched < len(texts)
                item = found.named(image, (*place, key), place)
                before.setdefault(matched if is_matched else -1, []).append((item, columns))
                break
    for at in range(-1, len(texts)):
        for item, columns in before.get(at, ()):
            found.add(item, columns)
        if at >= 0 and isinstance(texts[at], str):
            found.add_text(texts[at], (_TEXT_LIST, at), has_tokens=False)
    return False


# Questions and answers.

_QUESTIONS = ("question", "query", "problem", "prompt", "instruction")
_ANSWERS = ("answer", "answers", "label", "solution", "response", "output")
_MANY_QUESTIONS, _ANSWER = "questions", "answer"


def _is_texts(value: Any) -> bool:
    return (_is_string(value) and bool(value)) or value == [] or _any(value, _is_string)


def _is_answer(value: Any) -> bool:
    return _is_texts(value) or _any(value, lambda entry: _is_object_with(entry, _ANSWER))


def _is_object_with(value: Any, name: str) -> bool:
    return isinstance(value, dict) and isinstance(value.get(name), str)


def _question_and_answer(document: Document) -> tuple[str | None, str | None]:
    question = next((name for name in _QUESTIONS if _is_texts(document.get(name))), None)
    if question is None and _any(document.get(_MANY_QUESTIONS), _is_string):
        question = _MANY_QUESTIONS
    return question, next((name for name in _ANSWERS if _is_answer(document.get(name))), None)


def _is_vqa(look: Look) -> bool:
    return look.has_images and None not in _question_and_answer(look.document)


def _unfold_vqa(found: Unfolding) -> bool:
    question, answer = _question_and_answer(found.fields)
    asked, answered = {ROLE: "question"}, {ROLE: "answer"}
    questions = [] if question is None else _texts_of(found, question)
    answers = [] if answer is None else _texts_of(found, answer)
    turns = zip(questions, answers, strict=True) if len(questions) == len(answers) else ()
    if len(questions) > 1 and turns:
        for one, other in turns:
            _add_all(found, [one], asked)
            _add_all(found, [other], answered)
    else:
        _add_all(found, questions, asked)
        _add_all(found, answers, answered)
    return False


def _texts_of(found: Unfolding, name: str) -> list[tuple[str, Path, Path | None]]:
    """Take a field; return its texts, with the place of each and of the entry of a list around it."""
    value = found.take(name)
    if isinstance(value, str):
        return [(value, (name,), None)]
    texts: list[tuple[str, Path, Path | None]] = []
    for index, entry in enumerate(value):
        if isinstance(entry, str):
            texts.append((entry, (name, index), (name, index)))
        elif _is_object_with(entry, _ANSWER):
            value[index] = dict(entry)
            texts.append((entry[_ANSWER], (name, index, _ANSWER), (name, index)))
    return texts


def _add_all(
    found: Unfolding, texts: Sequence[tuple[str, Path, Path | None]], columns: Mapping[str, Any]
) -> None:
    for text, path, part in texts:
        found.add_text(text, path, columns, has_tokens=part is None, part=part)


# Captions, and images alone.

_CAPTIONS = ("captions", "text", "caption")


def _caption_field(document: Document, texts_field: str) -> str | None:
    return next((name for name in (texts_field, *_CAPTIONS) if _is_texts(document.get(name))), None)


def _is_captions(look: Look) -> bool:
    name = _caption_field(look.document, look.texts_field)
    if look.reads_images:  # one text beside them is a field like any other
        return name is not None and isinstance(look.document[name], list)
    return look.names_images or (look.has_own and name is not None)


def _unfold_captions(found: Unfolding) -> bool:
    name = _caption_field(found.fields, found.texts_field)
    texts = [] if name is None else _texts_of(found, name)
    _add_all(found, [(text, path, part) for text, path, part in texts], {})
    is_scalar = [part is None for _, _, part in texts] == [True]
    return is_scalar and len(found.images) == 1 and not found.has_list_of_images


# Back to documents.


_ROLES = {"question": "user", "answer": "assistant"}


def _plain_chat(rows: Sequence[Row]) -> dict[str, Any]:
    """One message for each run of items with the same role and turn; without a role it is the user's.

    Questions are the user's, and answers the assistant's.
    """
    messages: list[dict[str, Any]] = []
    last: Any = None
    for row in rows:
        role = row.columns.get(ROLE) or "user"
        of = _ROLES.get(role, role), row.columns.get(TURN)
        if of != last:
            messages.append({ROLE: of[0], "content": []})
            last = of
        part = (
            {"type": "image", "image": row.image} if row.text is None else {"type": "text", "text": row.text}
        )
        messages[-1]["content"].append(part)
    return {_TURNS[0]: messages}


def _plain_mmc4(rows: Sequence[Row]) -> dict[str, Any]:
    texts: list[str] = []
    infos: list[dict[str, Any]] = []
    for row in rows:
        if row.text is None:
            infos.append({**row.columns, _NAMES_OF_INFO[0]: row.image, _MATCHED: len(texts)})
        else:
            texts.append(row.text)
    if infos and infos[-1][_MATCHED] == len(texts):
        raise FoldError(f"the image at position {rows[-1].position} has no text behind it")
    return {_TEXT_LIST: texts, _IMAGE_INFO: infos}


def _plain_vqa(rows: Sequence[Row]) -> dict[str, Any]:
    images, texts = _images_first(rows)
    roles = [row.columns.get(ROLE) for row in texts]
    if roles[:1] != ["question"] or set(roles[1:]) - {"answer"}:
        raise FoldError(f"column {ROLE!r} is not one question and its answers")
    answers = [row.text for row in texts[1:]]
    return {"images": images, "question": texts[0].text, "answers": answers}


def _plain_captions(rows: Sequence[Row]) -> dict[str, Any]:
    kinds = [row.text is None for row in rows]
    if kinds == [False, True]:  # a pair
        return {"image": rows[1].image, "text": rows[0].text}
    images, texts = _images_first(rows)
    return {"images": images, "captions": [row.text for row in texts]}


def _images_first(rows: Sequence[Row]) -> tuple[list[str | None], list[Row]]:
    texts = [row for row in rows if row.text is not None]
    images = [row for row in rows if row.text is None]
    if texts and images and images[-1].position > texts[0].position:
        raise FoldError(f"the image at position {images[-1].position} is behind a text")
    return [row.image for row in images], texts


@dataclass(frozen=True)
class Layout:
    """A layout of documents.

    Args:
        name: its name in settings, in ``_source`` and in messages.
        fields: what it is found by, for people.
        matches: whether a look at a document finds it.
        unfold: takes the items of a document in order; whether it is a pair, whose text comes first.
        plain: the document of rows that did not come from this layout.
        held: columns of items that this document has.
    """

    name: str
    fields: str
    matches: Callable[[Look], bool]
    unfold: Callable[[Unfolding], bool]
    plain: Callable[[Sequence[Row]], dict[str, Any]]
    held: Callable[[Row], Container[str]] = lambda _: ()


LAYOUTS = (
    Layout(
        "chat",
        "messages, conversations, or texts of user and assistant",
        _is_chat,
        _unfold_chat,
        _plain_chat,
        lambda _: (ROLE, TURN),
    ),
    Layout(
        "mmc4",
        "text_list and image_info",
        _is_mmc4,
        _unfold_mmc4,
        _plain_mmc4,
        lambda row: row.columns if row.text is None else (),
    ),
    Layout("vqa", "images, a question and answers", _is_vqa, _unfold_vqa, _plain_vqa, lambda _: (ROLE,)),
    Layout("captions", "images, and captions if any", _is_captions, _unfold_captions, _plain_captions),
)
INTERLEAVED = "interleaved"  # lists of texts and images, and pairs: read without this table
LAYOUT_NAMES = (INTERLEAVED, *(layout.name for layout in LAYOUTS))


def layout_of(name: str | None) -> Layout | None:
    """Return the layout of a name; None for documents that are read without this table."""
    return next((layout for layout in LAYOUTS if layout.name == name), None)


def described(layout: Layout, unread: Iterable[str]) -> str:
    """Return the layout of some documents in words, with types of parts that are not read."""
    kept = ", ".join(map(repr, islice(unread, _TYPES_NAMED)))
    return f"{layout.name}; not read, but kept in _source: parts of type {kept}" if kept else layout.name


def is_list_of_texts(document: Document, texts_field: str) -> bool:
    """Return whether a document has texts as interleaved documents do, and needs no other layout."""
    texts = document.get(texts_field)
    return isinstance(texts, list) and not _any(texts, _is_exchange)


def find_layout(
    document: Document,
    texts_field: str,
    images_field: str,
    has_own: bool = False,
    reads_images: bool = False,
) -> Layout | None:
    """Return the layout of a document that has no `is_list_of_texts`; None if it has none of the table."""
    names_images = bool(image_fields(document, images_field))
    look = Look(document, texts_field, names_images, has_own, reads_images)
    return next((layout for layout in LAYOUTS if layout.matches(look)), None)


def fold(
    layout: Layout, fields: Mapping[str, Any], source: Mapping[str, Any], rows: Sequence[Row]
) -> dict[str, Any]:
    """Return the document of a sample.

    Args:
        layout: its layout.
        fields: values of its metadata row that are not null.
        source: ``_source`` of that row.
        rows: its items, in order.

    Raises:
        FoldError: the layout cannot hold it.
    """
    remembered = source.get(LAYOUT)
    if isinstance(remembered, dict) and remembered.get("name") == layout.name:
        try:
            document = refill(remembered, rows)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            if isinstance(error, FoldError):
                raise
            raise FoldError(
                f"column '_source': its layout does not fit the sample: {error!r:.200}"
            ) from error
    else:
        for row in rows:
            if row.text is None and row.image is None:
                raise FoldError(f"the image at position {row.position}, which has no bytes and no name")
            lost = [name for name in row.columns if name not in layout.held(row)]
            if lost:
                raise FoldError(f"column {lost[0]!r} of the item at position {row.position}")
        document = layout.plain(rows)
    rest = {**dict.fromkeys(source.get("nulls", ())), **source.get("fields", {}), **fields}
    if clash := document.keys() & rest.keys():
        raise FoldError(f"field {min(clash)!r} would be there twice")
    return {**document, **rest}
