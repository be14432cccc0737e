"""The wire: what goes in comes out, and a hostile frame is an error, nothing else."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from octavo.contracts.codec import Decoder, Encoder
from octavo.contracts.messages import (
    EngineOutput,
    EngineOutputs,
    EngineRequest,
    FinishReason,
    LogprobRows,
    SchedulerStats,
)
from octavo.contracts.sampling_params import SamplingParams

DTYPES = ["float32", "int32", "int64", "uint8", "uint16"]


class Holder(msgspec.Struct):
    array: np.ndarray


def through(message: Any, kind: Any = None) -> Any:
    return Decoder(kind or type(message)).decode(Encoder().encode(message))


def frame(
    name: Any, shape: Any, body: bytes, *, code: int = 1, header: bytes | None = None
) -> bytes:
    """A `Holder` as an attacker may write it."""
    header = msgspec.msgpack.encode((name, shape)) if header is None else header
    data = len(header).to_bytes(2, "little") + header + body
    return msgspec.msgpack.encode({"array": msgspec.msgpack.Ext(code, data)})


@given(
    hnp.arrays(
        dtype=st.sampled_from(DTYPES),
        shape=hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4),
    )
)
def test_arrays_come_back_bit_for_bit(array: np.ndarray) -> None:
    back = through(Holder(array)).array
    assert back.dtype == array.dtype
    assert back.shape == array.shape
    assert back.tobytes() == array.tobytes()


@pytest.mark.parametrize(
    "array",
    [
        np.arange(12, dtype=np.int32).reshape(3, 4).T,
        np.arange(12, dtype=np.float32)[::-2],
        np.arange(5, dtype=">i4"),
        np.arange(5, dtype=">f4"),
        np.broadcast_to(np.float32(1), (3, 4)),
    ],
    ids=["transposed", "strided", "big-endian-int", "big-endian-float", "broadcast"],
)
def test_any_memory_layout(array: np.ndarray) -> None:
    np.testing.assert_array_equal(through(Holder(array)).array, array)


def test_nan_payloads_survive() -> None:
    bits = np.array([0x7FC00001, 0xFFFFFFFF, 0x80000000], dtype=np.uint32)
    back = through(Holder(bits.view(np.float32))).array
    np.testing.assert_array_equal(back.view(np.uint32), bits)


@pytest.mark.parametrize(
    "array",
    [
        np.zeros(2, np.float64),
        np.zeros(2, np.complex64),
        np.array([object()]),
        np.array(["x"]),
        np.zeros((1, 1, 1, 1, 1), np.float32),
    ],
    ids=["float64", "complex", "object", "text", "five dimensions"],
)
def test_what_cannot_travel_says_so(array: np.ndarray) -> None:
    with pytest.raises(TypeError, match="cannot travel over the wire"):
        Encoder().encode(Holder(array))


def test_foreign_objects_cannot_travel() -> None:
    with pytest.raises(TypeError, match="object cannot travel over the wire"):
        Encoder().encode({"x": object()})


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        msgspec.msgpack.encode({"array": 5}),
        msgspec.msgpack.encode({"array": b"bytes"}),
        msgspec.msgpack.encode({"array": msgspec.msgpack.Ext(1, b"")}),
        msgspec.msgpack.encode({"array": msgspec.msgpack.Ext(1, b"\x07")}),
        msgspec.msgpack.encode({"array": msgspec.msgpack.Ext(1, b"\xff\xff\x92")}),
        frame("float32", (1,), b"abcd", code=2),
        frame("float32", (1,), b"abcd", header=b"\xc1"),
        frame("float32", (1,), b"abcde"),
        frame("float32", (2,), b"abcd"),
        frame("float32", (-1,), b""),
        frame("float32", (-1, -1), b"abcd"),
        frame("float32", (1, 1, 1, 1, 1), b"abcd"),
        frame("float32", (1.0,), b"abcd"),
        frame("float32", "1", b"abcd"),
        frame("float32", (2**62,), b""),
        frame("float32", (0, 2**62), b""),
        frame("float32", (0, 2**63 - 1, 2**63 - 1), b""),
        frame("object", (1,), b"abcdefgh"),
        frame("O", (1,), b"abcdefgh"),
        frame("float64", (1,), b"abcdefgh"),
        frame(5, (1,), b"abcd"),
    ],
)
def test_hostile_arrays(data: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        Decoder(Holder).decode(data)


@pytest.mark.parametrize("opening", [b"\x91", b"\x81\xa1a"], ids=["lists", "maps"])
def test_deep_nesting(opening: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        Decoder(Any).decode(opening * 100_000)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("request_id", 5),
        ("prompt_token_ids", "1"),
        ("prompt_token_ids", [1.5]),
        ("sampling_params", {"n": 0}),
        ("sampling_params", {"temperature": float("nan")}),
        ("sampling_params", {"presence_penalty": 3.0}),
        ("sampling_params", {"logit_bias": {-1: 1.0}}),
        ("bad_words_token_ids", [[1.5]]),
        ("priority", "high"),
    ],
)
def test_wrong_fields(field: str, value: Any) -> None:
    good = {"request_id": "a", "prompt_token_ids": [1]}
    with pytest.raises(msgspec.ValidationError, match=field):
        Decoder(EngineRequest).decode(msgspec.msgpack.encode(good | {field: value}))


MESSAGES = [
    EngineRequest(
        request_id="0_a",
        prompt_token_ids=[1, 2, 3],
        sampling_params=SamplingParams(
            n=3,
            seed=2**64 - 1,
            stop="x",
            stop_token_ids=[7],
            logit_bias={5: 1.5, 0: -100.0},
            allowed_token_ids=[3, 1],
            bad_words=["é"],
            repetition_penalty=1.25,
            prompt_logprobs=-1,
        ),
        eos_token_ids=[2],
        bad_words_token_ids=[[9], [1, 2, 3]],
        sample_index=2,
        fork_of="0_b",
        cache_salt="é",
        extras={"grammar": {"kind": "json"}},
    ),
    EngineOutputs(
        outputs=[
            EngineOutput(request_id="a", new_token_ids=[5], num_cached_tokens=16),
            EngineOutput(request_id="b", finish_reason=FinishReason.ERROR, error="no"),
            EngineOutput(request_id="c", finish_reason=FinishReason.STOP, stop_reason=2),
            EngineOutput(request_id="d", stop_reason="text"),
        ],
        stats=SchedulerStats(num_running=3, num_blocks=10, num_used_blocks=5),
    ),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda m: type(m).__name__)
def test_messages_come_back_equal(message: Any) -> None:
    assert through(message) == message


def test_logprobs_come_back() -> None:
    rows = LogprobRows(
        token_ids=np.array([[3, 1], [4, 4]], np.int32),
        logprobs=np.array([[-0.5, -1], [-np.inf, -2]], np.float32),
        ranks=np.array([1, 2], np.int32),
    )
    back = through(EngineOutput(request_id="a", new_token_ids=[3, 4], logprobs=rows)).logprobs
    assert len(back) == 2
    for name in ("token_ids", "logprobs", "ranks"):
        np.testing.assert_array_equal(getattr(back, name), getattr(rows, name))


def test_arrays_in_extras_come_back() -> None:
    request = EngineRequest(
        request_id="a", prompt_token_ids=[1], extras={"image": np.arange(6, dtype=np.uint8)}
    )
    np.testing.assert_array_equal(through(request).extras["image"], np.arange(6))


WIRE = [Encoder().encode(m) for m in MESSAGES] + [frame("float32", (2, 1), b"abcdefgh")]
KINDS = [EngineRequest, EngineOutputs, Holder]


@given(st.sampled_from(WIRE), st.data())
def test_a_damaged_frame_never_does_more_than_raise(wire: bytes, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(wire)))
    end = data.draw(st.integers(start, min(len(wire), start + 4)))
    damaged = wire[:start] + data.draw(st.binary(max_size=4)) + wire[end:]
    for kind in KINDS:
        with suppress(msgspec.DecodeError):
            assert isinstance(Decoder(kind).decode(damaged), kind)


@given(st.binary(max_size=64))
def test_noise_never_does_more_than_raise(noise: bytes) -> None:
    for kind in KINDS:
        with suppress(msgspec.DecodeError):
            assert isinstance(Decoder(kind).decode(noise), kind)
