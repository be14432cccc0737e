"""docs/cli.md says what the commands are, now."""

from __future__ import annotations

from dataclasses import fields
from types import ModuleType

import pytest

from octavo.config.engine import EngineConfig, section_fields
from tests.scripts import ROOT, load_script


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return load_script("gen_cli_docs")


def test_the_page_is_current(script: ModuleType) -> None:
    written = (ROOT / "docs" / "cli.md").read_text("utf-8")
    assert written == script.document(), "run `python scripts/gen_cli_docs.py`"


def test_everything_is_there(script: ModuleType) -> None:
    page = script.document()
    for command in ("generate", "serve", "chat", "pull", "models", "models rm", "export",
                    "bench serve", "collect-env"):  # fmt: skip
        assert f"## octavo {command}\n" in page
    for section in fields(EngineConfig):
        for f in section_fields(section.name):
            assert f"--{f.name.replace('_', '-')}" in page
    assert "| `--json` |" in page
    assert "| `--yes`, `-y` | |" in page
    assert "| `--max-num-seqs` INT | `128` |" in page
    assert "| `--workload-seed` INT | `0` |" in page
