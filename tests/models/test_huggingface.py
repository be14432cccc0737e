from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from octavo.models.huggingface import is_repository

COMMIT = "0123456789abcdef0123456789abcdef01234567"
FILES = {
    "config.json": b"{}",
    "tokenizer.json": b"{}",
    "chat_template.jinja": b"{{ messages }}",
    "model.safetensors": b"w" * 100_000,
    "consolidated.safetensors": b"c",
    "pytorch_model.bin": b"pickle",
    "original/model.safetensors": b"o",
    "m.gguf": b"GGUF",
}


class Hub(BaseHTTPRequestHandler):
    """As much of the hub's protocol as one repository needs."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.path.split("?")[0]
        if self.headers.get("Authorization") != "Bearer secret" and "/gated" in path:
            return self.reply(403, b"{}", {"X-Error-Code": "GatedRepo"})
        if "/private" in path:
            return self.reply(401, b"{}", {"X-Error-Code": "RepoNotFound"})
        if "/revision/nope" in path:
            return self.reply(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
        if path.startswith("/api/models/") and "/tree/" in path:
            tree = [
                {
                    "type": "file",
                    "path": name,
                    "size": len(data),
                    "oid": hashlib.sha1(data).hexdigest(),
                }
                for name, data in FILES.items()
            ]
            return self.reply(200, json.dumps(tree).encode(), {})
        if path.startswith("/api/models/"):
            siblings = [{"rfilename": name} for name in FILES]
            info = {"id": "o/n", "sha": COMMIT, "siblings": siblings}
            return self.reply(200, json.dumps(info).encode(), {})
        name = path.split("/resolve/")[-1].split("/", 1)[-1]
        if name not in FILES:
            return self.reply(404, b"", {"X-Error-Code": "EntryNotFound"})
        etag = {"ETag": f'"{hashlib.sha1(FILES[name]).hexdigest()}"', "X-Repo-Commit": COMMIT}
        return self.reply(200, FILES[name], etag)

    def reply(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for key, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        """Silence."""


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


SCRIPT = """
import json, sys
from octavo.errors import DownloadError
from octavo.models.huggingface import fetch_repository

results = []
for name, revision, weights in json.loads(sys.argv[1]):
    told = []
    try:
        path = fetch_repository(
            name, revision=revision, weights=weights, progress=lambda *n: told.append(n)
        )
        names = sorted(p.name for p in path.iterdir()) if path.is_dir() else path.name
        results.append([names, told])
    except DownloadError as error:
        results.append(str(error))
print(json.dumps(results))
"""


def fetch(home: Path, requests: list[tuple[str, str | None, bool]], **env: str) -> list:
    """`fetch_repository` in its own process: the client reads the environment when imported."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("HF_")}
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps(requests)],
        env={**inherited, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1", **env},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr
    assert "Fetching" not in result.stderr, "the client's own progress bars are shown"
    return json.loads(result.stdout)


def test_what_is_fetched_and_what_is_told(endpoint: str, tmp_path: Path) -> None:
    small, whole, file, gated, private, revision = fetch(
        tmp_path,
        [
            ("o/n", None, False),
            ("o/n", None, True),
            ("o/n/m.gguf", None, True),
            ("o/gated", None, True),
            ("o/private", None, True),
            ("o/n", "nope", True),
        ],
        HF_ENDPOINT=endpoint,
    )
    texts = ["chat_template.jinja", "config.json", "tokenizer.json"]
    assert small[0] == texts
    assert whole[0] == sorted([*texts, "model.safetensors"]), "pickles, subfolders or copies came"
    assert whole[1][-1][0] >= 100_000
    assert file[0] == "m.gguf"
    assert "then set HF_TOKEN" in gated
    assert "no such repository; if it is private" in private
    assert "no such revision" in revision
    (granted,) = fetch(
        tmp_path, [("o/gated", None, False)], HF_ENDPOINT=endpoint, HF_TOKEN="secret"
    )
    assert granted[0] == texts


def test_without_a_network(tmp_path: Path) -> None:
    (offline,) = fetch(tmp_path, [("o/n", None, True)], HF_HUB_OFFLINE="1")
    assert "HF_HUB_OFFLINE is set" in offline
    (unreachable,) = fetch(tmp_path, [("o/n", None, True)], HF_ENDPOINT="http://127.0.0.1:9")
    assert "o/n cannot be fetched: the hub cannot be reached" in unreachable


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        ("gpt2", True),
        ("owner/name-1.5_B", True),
        ("owner/name/sub/file.gguf", True),
        ("owner/name/file.bin", False),
        ("a//b", False),
        ("a/b\n", False),
        ("ä/b", False),
        ("", False),
    ],
)
def test_names_of_repositories(name: str, is_one: bool) -> None:
    assert is_repository(name) is is_one
