from __future__ import annotations

from pathlib import Path

import pytest

from octavo.entrypoints.batches.lines import LineResult
from octavo.entrypoints.batches.local import PartialOutput
from octavo.errors import ConfigError

DIGEST = "0" * 64


def test_one_process_writes_an_output(tmp_path: Path) -> None:
    """Two would overwrite each other's results."""
    output = tmp_path / "out.jsonl"
    first = PartialOutput(output, DIGEST)
    first.add([LineResult(1, False, b"{}\n")])
    with pytest.raises(ConfigError, match="another run"):
        PartialOutput(output, DIGEST)
    first.close()
    second = PartialOutput(output, DIGEST)
    assert set(second.offsets) == {1}
    second.finish()
    second.close()
    assert output.read_bytes() == b"{}\n"
