"""README.zh-CN.md says what README.md says: piece by piece, the same code, links and rows."""

from __future__ import annotations

import re

from tests.policy.tree import ROOT

ENGLISH, CHINESE = (
    (ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "README.zh-CN.md")
)
HINT = "change README.zh-CN.md with README.md"


def blocks(text: str) -> list[str]:
    return re.findall(r"^```.*?^```$", text, re.MULTILINE | re.DOTALL)


def prose(text: str) -> str:
    return re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)


def shape(text: str) -> list[str]:
    """What each line begins with: headings, rows of tables, points of lists."""
    return re.findall(r"^(?:#+ |\||- )", prose(text), re.MULTILINE)


def marks(text: str) -> list[tuple[set[str], list[str]]]:
    """By row, point or paragraph: the words in backticks, and the links in order."""
    pieces = re.split(r"\n\n|\n(?=[|#-])", prose(text))
    languages = ("README.md", "README.zh-CN.md")
    return [
        (
            set(re.findall(r"`([^`]+)`", piece)),
            [link for link in re.findall(r"\]\(([^)]+)\)", piece) if link not in languages],
        )
        for piece in pieces
    ]


def test_the_code_is_the_same() -> None:
    assert blocks(ENGLISH) == blocks(CHINESE), HINT


def test_headings_rows_and_points_correspond() -> None:
    assert shape(ENGLISH) == shape(CHINESE), HINT


def test_words_in_backticks_and_links_correspond() -> None:
    english, chinese = marks(ENGLISH), marks(CHINESE)
    wrong = [pair for pair in zip(english, chinese) if pair[0] != pair[1]]
    assert not wrong, f"{HINT}: {wrong}"
    assert len(english) == len(chinese), HINT


def test_every_table_cell_is_there() -> None:
    for english, chinese in zip(
        re.findall(r"^\|.*$", ENGLISH, re.MULTILINE), re.findall(r"^\|.*$", CHINESE, re.MULTILINE)
    ):
        cells = [[cell.strip() for cell in row.split("|")[1:-1]] for row in (english, chinese)]
        assert [bool(c) for c in cells[0]] == [bool(c) for c in cells[1]], HINT
        numbers = [set(re.findall(r"(?<![\w-])\d+(?![\w-])", row)) for row in (english, chinese)]
        assert numbers[0] == numbers[1], (HINT, english)


def test_they_name_each_other() -> None:
    assert "(README.zh-CN.md)" in ENGLISH
    assert "(README.md)" in CHINESE
