from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from octavo.entrypoints.openai.tokens import TokenTable
from tests.engine.fakes import EOS, ByteTokenizer

TABLE = TokenTable(ByteTokenizer([b" the", "é".encode() + b"\xf0\x9f", b"\x98\x80!"]))  # type: ignore[arg-type]


def test_spelling() -> None:
    assert TABLE.spell(97).chat == TABLE.spell(97).completion == "a"
    assert TABLE.spell(0xF0).chat == "\\xf0"
    assert TABLE.spell(0xF0).completion == "bytes:\\xf0"
    assert TABLE.spell(EOS).chat == "<eos>"
    assert TABLE.spell(260).data == "é".encode() + b"\xf0\x9f"
    assert TABLE.spell(10**9).chat == ""


def test_offsets() -> None:
    ids = [259, 260, 261, EOS, 97]
    offsets = TABLE.offsets(skip_special_tokens=True)
    assert offsets.advance(ids) == [0, 4, 5, 7, 7]
    assert offsets.advance([98]) == [8]
    assert TABLE.offsets(skip_special_tokens=False, start=10).advance(ids) == [10, 14, 15, 17, 22]


@given(st.text(max_size=20), st.integers(1, 5))
def test_offsets_of_bytes_are_those_of_characters(text: str, step: int) -> None:
    ids = list(text.encode())
    offsets = TABLE.offsets(skip_special_tokens=True)
    got = [o for i in range(0, len(ids), step) for o in offsets.advance(ids[i : i + step])]
    expected = [i for i, c in enumerate(text) for _ in c.encode()]
    assert got == expected
