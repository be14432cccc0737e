"""How long a refusal takes does not tell how much of a key was right."""

from __future__ import annotations

import ast
import hmac
import inspect
from typing import Any

import pytest

from octavo.entrypoints.openai import gate, keys
from octavo.entrypoints.openai.keys import KeyRing


def test_every_key_is_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them, whichever it is, by `hmac.compare_digest` over digests of one length."""
    compared: list[tuple[bytes, bytes]] = []
    compare = hmac.compare_digest

    def watched(a: bytes, b: bytes) -> bool:
        compared.append((a, b))
        return compare(a, b)

    monkeypatch.setattr(hmac, "compare_digest", watched)
    ring = KeyRing(["first", "second", "a-much-longer-third-key"])
    for token, found in ((b"first", True), (b"", False), (b"x" * 10_000, False)):
        compared.clear()
        assert (ring.find(token) is not None) is found
        assert len(compared) == 3
        assert {len(part) for pair in compared for part in pair} == {32}


@pytest.mark.parametrize("module", [gate, keys])
def test_keys_are_compared_in_no_other_way(module: Any) -> None:
    """No `==` and no look-up by what a client sent."""
    tree = ast.parse(inspect.getsource(module))
    (find,) = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.name in ("find", "_given_key")
    ]
    names = {"token", "digest", "value", "keys"}
    for node in ast.walk(find):
        if isinstance(node, ast.Compare) and not isinstance(node.ops[0], (ast.Is, ast.IsNot)):
            used = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
            calls = [n for n in ast.walk(node) if isinstance(n, ast.Call)]
            assert calls or not used & names, ast.unparse(node)
