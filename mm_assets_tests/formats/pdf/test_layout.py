"""Reading order and blocks, from boxes alone."""

from __future__ import annotations

from mm_assets.formats.pdf import Box, Frame, Piece, blocks_of

WIDTH = 600


def _line(text: str, left: float, top: float, width: float = 200, height: float = 12) -> Piece:
    return Piece(Box(left, top, left + width, top + height), text)


def _image(number: int, left: float, top: float, width: float, height: float) -> Piece:
    return Piece(Box(left, top, left + width, top + height), None, number)


def _order(pieces: list[Piece]) -> list[str | int]:
    blocks = blocks_of(pieces, WIDTH)
    return [block.number if block.text is None else block.text for block in blocks]


def _column(name: str, left: float, top: float, count: int = 3) -> list[Piece]:
    return [_line(f"{name}{number}", left, top + 13 * number) for number in range(count)]


def test_lines_near_each_other_are_a_block_and_a_gap_begins_another() -> None:
    pieces = [*_column("a", 50, 100), *_column("b", 50, 160), _line("heading", 50, 60, height=24)]
    assert _order(pieces[::-1]) == ["heading", "a0\na1\na2", "b0\nb1\nb2"]


def test_double_spaced_lines_are_one_block() -> None:
    assert _order([_line(f"{n}", 50, 100 + 24 * n, 500) for n in range(4)]) == ["0\n1\n2\n3"]


def test_columns_are_read_one_after_the_other_between_what_spans_them() -> None:
    pieces = [
        _line("title", 100, 20, 400),
        *_column("left", 50, 60),
        *_column("right", 330, 60),
        _line("middle", 60, 120, 480),
        *_column("lower left", 50, 150),
        *_column("lower right", 330, 150),
    ]
    assert _order(pieces) == [
        "title",
        "left0\nleft1\nleft2",
        "right0\nright1\nright2",
        "middle",
        "lower left0\nlower left1\nlower left2",
        "lower right0\nlower right1\nlower right2",
    ]


def test_three_columns() -> None:
    pieces = [
        piece
        for name, left in (("c", 420), ("a", 20), ("b", 220))
        for piece in (_line(f"{name}{n}", left, 50 + 13 * n, 160) for n in range(2))
    ]
    assert _order(pieces) == ["a0\na1", "b0\nb1", "c0\nc1"]


def test_list_marks_are_no_column() -> None:
    marks = [_line("*", 50, 50 + 13 * n, 6) for n in range(3)]
    texts = [_line(f"point {n}", 80, 50 + 13 * n, 400) for n in range(3)]
    assert _order([*marks, *texts]) == ["*\tpoint 0\n*\tpoint 1\n*\tpoint 2"]


def test_short_lines_that_are_not_beside_each_other_are_no_columns() -> None:
    pieces = [*_column("author", 350, 60, 2), *_column("heading", 50, 120, 2)]
    assert _order(pieces) == ["author0\nauthor1", "heading0\nheading1"]


def test_images_are_blocks_of_their_column() -> None:
    pieces = [
        *_column("left", 50, 60),
        _image(7, 50, 110, 200, 100),
        *_column("below", 50, 220),
        *_column("right", 330, 60, 12),
    ]
    right = "\n".join(f"right{n}" for n in range(12))
    assert _order(pieces) == ["left0\nleft1\nleft2", 7, "below0\nbelow1\nbelow2", right]


def test_the_text_of_a_scan_comes_behind_it_and_in_its_own_order() -> None:
    pieces = [*_column("right", 330, 60), _image(0, 0, 0, 600, 800), *_column("left", 50, 60)]
    assert _order(pieces) == [0, "left0\nleft1\nleft2", "right0\nright1\nright2"]


def test_two_equal_images_at_one_place_are_both_kept() -> None:
    assert _order([_image(0, 0, 0, 100, 100), _image(1, 0, 0, 100, 100)]) == [0, 1]


def test_many_pieces_take_no_search_for_columns() -> None:
    pieces = [_line(f"{n}", 50 + 280 * (n % 2), 3 * n, 200, 2) for n in range(1200)]
    found = _order(pieces)
    assert sorted(word for text in found for word in str(text).replace("\t", "\n").split("\n")) == sorted(
        str(n) for n in range(1200)
    )


def test_boxes_are_shares_of_the_page_as_it_is_shown() -> None:
    corners = ((100, 200), (200, 240))
    upright = Frame(0, 0, 400, 800)
    assert upright.shares(upright.box(corners)) == [0.25, 0.7, 0.5, 0.75]
    for turn, expected in (
        (90, [0.25, 0.25, 0.3, 0.5]),
        (180, [0.5, 0.25, 0.75, 0.3]),
        (270, [0.7, 0.5, 0.75, 0.75]),
    ):
        frame = Frame(0, 0, 400, 800, turn)
        assert frame.size == ((800, 400) if turn != 180 else (400, 800))
        assert frame.shares(frame.box(corners)) == expected
        assert frame.rectangle(100, 200, 200, 240) == frame.box(corners)
    assert upright.box(((0, 0), (float("nan"), 5))) == (0, 0, 0, 0)
    cropped = Frame(100, 200, 200, 300)
    assert cropped.shares(cropped.box(((50, 250), (150, 300)))) == [0.0, 0.0, 0.5, 0.5]
    assert cropped.of_shares([0.0, 0.0, 0.5, 0.5]) == Box(0, 0, 50, 50)
