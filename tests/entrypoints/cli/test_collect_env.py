"""`octavo collect-env`: what it says, and what it keeps to itself."""

from __future__ import annotations

import json
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from octavo.entrypoints.cli import collect_env
from tests.entrypoints.cli.command import Command
from tests.policy.test_constraints import declared


def test_json(cli_at_home: Command, tmp_path: Path) -> None:
    status, out, err = cli_at_home("collect-env", "--json")
    assert (status, err) == (0, "")
    found = json.loads(out)
    assert set(found) == {"octavo", "system", "cpu", "memory", "packages", "variables"}
    assert found["octavo"]["home"] == str(tmp_path)
    assert found["system"]["executable"] == sys.executable
    assert found["packages"]["numpy"] == version("numpy")
    cpu = found["cpu"]
    assert 1 <= cpu["compute_threads"] <= cpu["cores_allowed"] <= cpu["logical_cpus_allowed"]
    assert 0 < found["memory"]["free_bytes"] <= found["memory"]["total_bytes"]


def test_text(cli_at_home: Command) -> None:
    status, out, _ = cli_at_home("collect-env")
    assert status == 0
    assert f"  python          {sys.version.split()[0]}\n" in out
    assert "iB\n" in out.partition("memory\n")[2]


def test_kernel_tiers(cli_at_home: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("octavo._cpu")
    monkeypatch.setenv("OCTAVO_CPU_ISA", "scalar")
    cpu = json.loads(cli_at_home("collect-env", "--json")[1])["cpu"]
    assert cpu["kernel_tiers"][0] == "scalar"
    assert cpu["kernel_tiers_in_use"] == ["scalar"]
    monkeypatch.setenv("OCTAVO_CPU_ISA", "nope")
    assert "nope" in json.loads(cli_at_home("collect-env", "--json")[1])["cpu"]["kernels"]


def test_secrets_stay_secret(cli_at_home: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OCTAVO_API_KEY", "OCTAVO_SOMETHING", "HF_TOKEN", "HF_ENDPOINT", "MY_PASSWORD"):
        monkeypatch.setenv(name, "tell-nobody")
    monkeypatch.setenv("OCTAVO_LOG_LEVEL", "ERROR")
    for arguments in ((), ("--json",)):
        _, out, _ = cli_at_home("collect-env", *arguments)
        assert "tell-nobody" not in out
        assert "MY_PASSWORD" not in out
    shown = json.loads(out)["variables"]
    assert shown["OCTAVO_LOG_LEVEL"] == "ERROR"
    assert {"OCTAVO_API_KEY", "OCTAVO_SOMETHING", "HF_TOKEN", "HF_ENDPOINT"} < set(shown)


def test_every_runtime_dependency_is_named() -> None:
    names = {r.name for r in declared()["runtime"]}
    assert names <= set(collect_env.PACKAGES)
