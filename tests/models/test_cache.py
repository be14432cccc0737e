"""The cache of model files, and what does not belong to it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from octavo.errors import ConfigError, ModelError
from octavo.models.aliases import ALIASES
from octavo.models.cache import CachedModel, find_model, list_models, remove_model


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """models/pypi of an empty home."""
    monkeypatch.setenv("OCTAVO_HOME", str(tmp_path / "home"))
    return tmp_path / "home" / "models" / "pypi"


def put(path: Path, num_bytes: int = 3) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * num_bytes)
    return path


def here() -> dict[str, int]:
    return {m.name: m.num_bytes for m in list_models() if m.is_here}


def test_aliases_are_always_listed(packages: Path) -> None:
    models = {m.name: m for m in list_models()}
    assert set(models) == set(ALIASES)
    smol = models["smollm2-135m"]
    assert (smol.is_here, smol.num_bytes, smol.download_bytes) == (False, 0, 92_871_040)
    assert smol.path == ALIASES["smollm2-135m"].cache_path
    assert not packages.exists()


def test_what_is_there(packages: Path) -> None:
    put(ALIASES["smollm2-135m"].cache_path, 7)
    put(packages / "a==1" / "m.gguf", 5)
    put(packages / "a==1" / "m.gguf.sha256", 64)
    put(packages / "a==1" / "empty.gguf", 0)
    (packages / "b==1").mkdir()
    put(packages / "stray.gguf")
    assert here() == {"smollm2-135m": 7, "a==1/m.gguf": 5}
    assert [m.name for m in list_models()] == ["gemma3-270m", "smollm2-135m", "a==1/m.gguf"]
    assert find_model("a==1/m.gguf").source == "pypi:a==1"


def test_links_are_not_followed(packages: Path, tmp_path: Path) -> None:
    outside = put(tmp_path / "outside" / "m.gguf")
    put(packages / "a==1" / "m.gguf")
    (packages / "a==1" / "linked.gguf").symlink_to(outside)
    (packages / "b==1").symlink_to(outside.parent)
    assert here() == {"a==1/m.gguf": 3}
    with pytest.raises(ConfigError, match="not in the cache"):
        find_model("b==1/m.gguf")
    for path in (packages / "a==1" / "linked.gguf", packages / "absent"):
        with pytest.raises(ModelError, match="cannot be removed"):
            remove_model(CachedModel(name="x", source="x", path=path, num_bytes=3))
    assert outside.exists()


def test_a_linked_cache_is_not_ours(packages: Path, tmp_path: Path) -> None:
    put(tmp_path / "elsewhere" / "a==1" / "m.gguf")
    packages.parent.mkdir(parents=True)
    packages.symlink_to(tmp_path / "elsewhere")
    assert here() == {}


def test_remove(packages: Path) -> None:
    path = put(packages / "a==1" / "m.gguf")
    put(packages / "a==1" / "m.gguf.sha256")
    put(packages / "a==1" / "other.gguf")
    remove_model(find_model("a==1/m.gguf"))
    assert [p.name for p in packages.rglob("*.*")] == ["other.gguf"]
    assert not path.exists()
    remove_model(find_model("a==1/other.gguf"))
    assert list(packages.iterdir()) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may remove anything")
def test_a_folder_that_may_not_be_written(packages: Path) -> None:
    put(packages / "a==1" / "m.gguf")
    (packages / "a==1").chmod(0o500)
    with pytest.raises(ModelError, match="Permission denied"):
        remove_model(find_model("a==1/m.gguf"))


def test_unknown_names(packages: Path) -> None:
    with pytest.raises(ConfigError, match="holds nothing; fetch it with `octavo pull smollm2-135m"):
        find_model("smollm2-135m")
    put(packages / "a==1" / "m.gguf")
    for name in ("", "../a", "a==1", "m.gguf", "/etc/passwd"):
        with pytest.raises(ConfigError, match=r"holds a==1/m.gguf$"):
            find_model(name)
