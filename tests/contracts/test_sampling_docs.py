"""docs/sampling.md has a row for every field, with its default."""

from __future__ import annotations

import enum
import re
from pathlib import Path

from octavo.contracts.sampling_params import SamplingParams

PAGE = (Path(__file__).parents[2] / "docs" / "sampling.md").read_text(encoding="utf-8")


def test_every_field_and_its_default() -> None:
    (table,) = re.findall(r"^## The fields\n(.*?)\n\n", PAGE, re.MULTILINE | re.DOTALL)
    rows = re.findall(r"^\| `(\w+)` \| (\S+) \|", table, re.MULTILINE)
    params = SamplingParams()
    expected = {}
    for name in SamplingParams.__struct_fields__:
        value = getattr(params, name)
        expected[name] = value.name if isinstance(value, enum.Enum) else str(value)
    assert dict(rows) == expected
    assert len(rows) == len(expected)
