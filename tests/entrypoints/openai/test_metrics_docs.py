"""docs/metrics.md says what /metrics exposes, now."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from octavo.engine.metrics_exposition import PREFIX
from tests.entrypoints.openai.harness import serving
from tests.scripts import ROOT, load_script


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return load_script("gen_metrics_docs")


def test_the_page_is_current(script: ModuleType) -> None:
    written = (ROOT / "docs" / "metrics.md").read_text("utf-8")
    assert written == script.document(), "run `python scripts/gen_metrics_docs.py`"


async def test_a_server_has_these_and_no_others(script: ModuleType, tmp_path: Path) -> None:
    async with serving(api_key=["k"], batch_dir=str(tmp_path)) as s:
        await s.get("/health")
        text = (await s.get("/metrics", authorization="Bearer k")).body.decode()
    there = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}
    named = {m.name + ("_total" if m.type == "counter" else "") for m in script.families()}
    assert {name for name in there if name.startswith(PREFIX)} == named
