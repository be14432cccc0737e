from __future__ import annotations

import re
import subprocess
import sys
from typing import Any

import pytest

from octavo.config.model import ConfigReader
from octavo.errors import UnsupportedModelError
from octavo.models.gguf_families import ARCHITECTURES
from octavo.models.registry import build_model, supported_architectures
from tests.models.test_llama import CONFIG
from tests.policy.tree import ROOT


@pytest.mark.parametrize("name", supported_architectures())
def test_every_architecture_builds(name: str) -> None:
    values = CONFIG | {"architectures": [name], "text_config": CONFIG}
    model = build_model(ConfigReader(values, "config.json"))
    assert type(model).__name__ == name


@pytest.mark.parametrize("architectures", [["Llama9ForCausalLM"], [], [7], [["LlamaForCausalLM"]]])
def test_unknown_architectures_list_what_is_supported(architectures: Any) -> None:
    with pytest.raises(UnsupportedModelError, match="supported: Gemma2ForCausalLM, Gemma3"):
        build_model(ConfigReader(CONFIG | {"architectures": architectures}, "config.json"))


@pytest.mark.parametrize("architectures", [None, "LlamaForCausalLM"])
def test_a_configuration_without_architectures_is_refused(architectures: Any) -> None:
    with pytest.raises(UnsupportedModelError, match="architectures"):
        build_model(ConfigReader(CONFIG | {"architectures": architectures}, "config.json"))


def test_the_page_on_models_names_them_all() -> None:
    page = (ROOT / "docs/models.md").read_text("utf-8")
    tables = page.partition("## Adding a family")[0]
    assert set(re.findall(r"`(\w+For\w+)`", tables)) == set(supported_architectures())
    (row,) = (line for line in tables.splitlines() if line.startswith("| GGUF |"))
    assert set(re.findall(r"`(\w+)`", row)) == {*ARCHITECTURES, "gguf"}


def test_families_are_imported_only_when_chosen() -> None:
    code = "import sys, octavo.models.registry; sys.exit('octavo.models.llama' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
