from __future__ import annotations

import os
import stat
import threading
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.core.block_hash import (
    HASH_BYTES,
    SECRET_BYTES,
    BlockHasher,
    encode_key,
    load_hash_secret,
)
from octavo.core.request import Request
from octavo.errors import ConfigError
from tests.core.fake_worker import SECRET, make_request
from tests.core.hash_twin import chained_hashes


def request(prompt: list[int], **options: Any) -> Request:
    wire = make_request("r", prompt, **options)
    return Request(wire, arrival_index=0, num_groups=1, max_len=1000)


def hashes(prompt: list[int], hasher: BlockHasher | None = None, **options: Any) -> list[bytes]:
    made = request(prompt, **options)
    (hasher or BlockHasher(SECRET, 16)).extend(made)
    return made.block_hashes


def test_a_hash_binds_all_tokens_before_it() -> None:
    a = hashes(list(range(48)))
    b = hashes([99, *range(1, 48)])
    assert len(a) == 3
    assert all(len(h) == HASH_BYTES >= 16 for h in a)
    assert not set(a) & set(b)
    assert hashes([*range(32), *range(50, 66)])[:2] == a[:2]
    assert hashes(list(range(47))) == a[:2]


def test_equal_blocks_at_different_places_differ() -> None:
    a = hashes([5] * 64)
    assert len(set(a)) == 4


@pytest.mark.parametrize(("a", "b"), [(65, 321), (0, 256), (1, 1 + 2**16), (7, 7 + 2**24)])
def test_ids_are_hashed_whole(a: int, b: int) -> None:
    assert hashes([a] * 16) != hashes([b] * 16)
    assert hashes([2**31 - 1] * 16)


def test_kinds_of_extra_keys_are_told_apart() -> None:
    prompt = list(range(32))
    found = {
        tuple(hashes(prompt)),
        tuple(hashes(prompt, cache_salt="a")),
        tuple(hashes(prompt, cache_salt="b")),
        tuple(hashes(prompt, cache_salt="")),
        tuple(hashes(prompt, lora_name="a")),
        tuple(hashes(prompt, lora_name="a", cache_salt="a")),
        tuple(hashes(prompt, cache_salt="a" * 10_000)),
    }
    assert len(found) == 7
    # Through the chain, in every block.
    assert len({f[1] for f in found}) == 7


def test_a_hooks_keys_count_from_their_block_on() -> None:
    def image_at_20(request: Request, start: int, end: int) -> list[tuple[str, Hashable]]:
        return [("hook/mm", ("cat", 20 - start))] if start <= 20 < end else []

    plain, with_image = hashes([1] * 48), hashes([1] * 48, BlockHasher(SECRET, 16, image_at_20))
    assert plain[0] == with_image[0]
    assert plain[1] != with_image[1]
    assert plain[2] != with_image[2]


@pytest.mark.parametrize(
    ("prompt", "options", "same"),
    [
        ([1] * 20, {}, True),
        ([1] * 21, {}, False),
        ([1] * 19 + [2], {}, False),
        ([1] * 20, {"cache_salt": "a"}, False),
        ([1] * 20, {"lora_name": "a"}, False),
        ([1] * 20, {"seed": 5, "max_tokens": 3}, True),
    ],
)
def test_same_prompts(prompt: list[int], options: dict[str, Any], same: bool) -> None:
    hasher = BlockHasher(SECRET, 16)
    assert hasher.have_same_prompt(request([1] * 20), request(prompt, **options)) is same


def test_the_secret_is_the_key() -> None:
    prompt = list(range(16))
    assert hashes(prompt, BlockHasher(SECRET, 16)) == hashes(prompt, BlockHasher(SECRET, 16))
    assert hashes(prompt, BlockHasher(SECRET[::-1], 16)) != hashes(prompt)
    assert hashes(prompt, BlockHasher(None, 16)) != hashes(prompt, BlockHasher(None, 16))


@pytest.mark.parametrize("length", [0, 15, 65])
def test_a_secret_of_a_wrong_length_is_refused(length: int) -> None:
    with pytest.raises(ConfigError, match=f"{length} bytes; it must have 16…64"):
        BlockHasher(bytes(length), 16)


@settings(max_examples=50)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=100), st.lists(st.integers(1, 20)))
def test_growing_step_by_step_gives_the_same_hashes(prompt: list[int], steps: list[int]) -> None:
    hasher = BlockHasher(SECRET, 16)
    grown = request(prompt[:1])
    for step in [*steps, 100]:
        grown.token_ids += prompt[len(grown.token_ids) :][:step]
        hasher.extend(grown)
    assert grown.block_hashes == hashes(prompt)
    assert grown.block_hashes == chained_hashes(SECRET, prompt)


keys = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=3).map(tuple),
    max_leaves=6,
)


@settings(max_examples=300)
@given(keys, keys)
def test_encoding_tells_values_and_types_apart(a: Hashable, b: Hashable) -> None:
    def typed(value: Any) -> str:
        return repr(tuple(map(typed, value)) if isinstance(value, tuple) else value)

    assert (encode_key(a) == encode_key(b)) == (typed(a) == typed(b))


def test_encoding_refuses_what_it_cannot_tell_apart() -> None:
    assert encode_key(("a", "b")) != encode_key(("ab",))
    assert encode_key(1) != encode_key(True) != encode_key("1")
    for value in (frozenset({1}), object(), ("x", object())):
        with pytest.raises(TypeError, match="a hash key cannot hold"):
            encode_key(value)


class TestSecretFile:
    def test_it_is_made_once_and_private(self, tmp_path: Path) -> None:
        path = tmp_path / "deep" / "secret"
        secret = load_hash_secret(path)
        assert len(secret) == SECRET_BYTES
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert load_hash_secret(path) == secret
        assert os.listdir(path.parent) == ["secret"]

    def test_all_who_start_at_once_agree(self, tmp_path: Path) -> None:
        found: list[bytes] = []
        barrier = threading.Barrier(8)

        def start() -> None:
            barrier.wait()
            found.append(load_hash_secret(tmp_path / "secret"))

        threads = [threading.Thread(target=start) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(found) == 8
        assert len(set(found)) == 1

    def test_what_others_may_read_is_no_secret(self, tmp_path: Path) -> None:
        path = tmp_path / "secret"
        load_hash_secret(path)
        path.chmod(0o644)
        with pytest.raises(ConfigError, match=r"mode 0644.*chmod 600"):
            load_hash_secret(path)

    @pytest.mark.parametrize("size", [0, 31, 33])
    def test_a_file_of_another_size_is_refused(self, tmp_path: Path, size: int) -> None:
        path = tmp_path / "secret"
        path.write_bytes(bytes(size))
        path.chmod(0o600)
        with pytest.raises(ConfigError, match="does not hold 32 bytes"):
            load_hash_secret(path)

    def test_links_and_folders_are_refused(self, tmp_path: Path) -> None:
        load_hash_secret(tmp_path / "secret")
        (tmp_path / "link").symlink_to(tmp_path / "secret")
        (tmp_path / "folder").mkdir(mode=0o700)
        (tmp_path / "file").write_text("")
        for name in ("link", "folder", "file/secret"):
            with pytest.raises(ConfigError, match=f"{name}"):
                load_hash_secret(tmp_path / name)
