"""The CPU back end beside the contract: life, programs' memory, refusals."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.contracts.tensor import DType, HostTensor
from octavo.errors import ConfigError, KernelError
from octavo.kernels.cpu import CpuBackend
from octavo.kernels.ops import Activation, HeadShape, Ops, StepInputs, StepLimits, Value
from tests.kernels.backends import make_backend
from tests.kernels.cpu_steps import (
    LIMITS,
    make_cache,
    make_step,
    randn,
    run_rows,
    tensor,
)


def linear_forward(backend: CpuBackend, n: int = 40, k: int = 24) -> Callable[[Ops], None]:
    weight = backend.pack_linear([tensor(1, n, k)])
    return lambda ops: ops.output("out", ops.linear(ops.input("x", k), weight))


HEADS = HeadShape(num_heads=4, num_kv_heads=2, head_dim=8)

# ------------------------------------------------------------------------------ life


def test_close_joins_the_threads_and_later_calls_are_refused(backend: CpuBackend) -> None:
    forward = linear_forward(backend)
    graph = backend.capture(forward, LIMITS)
    step = make_step([(0, 3)], extra={"x": randn(2, 3, 24)})
    graph.replay(step)
    backend.close()
    backend.close()
    with pytest.raises(KernelError, match="closed"):
        graph.replay(step)
    with pytest.raises(KernelError, match="closed"):
        backend.pack_linear([tensor(1, 4, 4)])


def test_back_ends_live_side_by_side() -> None:
    x = randn(3, 130, 24)
    backends = [CpuBackend(DType.F32, 1 + i % 3) for i in range(9)]
    results = [run_rows(b, linear_forward(b), {"x": x})["out"] for b in backends]
    for backend in backends[::2]:
        backend.close()
    results += [run_rows(b, linear_forward(b), {"x": x})["out"] for b in backends[1::2]]
    for backend in backends:
        backend.close()
    assert all(np.array_equal(result, results[0]) for result in results)


def test_taps_outlive_graph_and_back_end() -> None:
    backend = CpuBackend(DType.F32, 2)
    graph = backend.capture(linear_forward(backend), LIMITS)
    x = randn(2, 3, 24)
    taps = graph.replay(make_step([(0, 3)], extra={"x": x}))
    backend.close()
    del graph, backend
    assert np.allclose(taps["out"], x @ randn(1, 40, 24).T, atol=1e-5)


def test_an_idle_pool_sleeps(backend: CpuBackend) -> None:
    run_rows(backend, linear_forward(backend), {"x": randn(2, 3, 24)})
    time.sleep(0.05)
    wall, cpu_time = time.perf_counter(), time.process_time()
    time.sleep(0.2)
    assert time.process_time() - cpu_time < 0.5 * (time.perf_counter() - wall)


def test_a_forked_child_is_refused_and_the_parent_goes_on() -> None:
    script = """
        import os, numpy as np
        from octavo.contracts.tensor import DType, HostTensor
        from octavo.errors import KernelError
        from octavo.kernels.cpu import CpuBackend
        backend = CpuBackend(DType.F32, 2)
        tensor = HostTensor.of(np.ones((4, 4), np.float32))
        pid = os.fork()
        if pid == 0:
            try:
                backend.pack_linear([tensor])
            except KernelError as error:
                backend.close()
                os._exit(7 if "forked" in str(error) else 1)
            os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
        backend.pack_linear([tensor])
    """
    run_python(script)


def run_python(script: str, **environment: str) -> str:
    result = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(script)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


@pytest.mark.parametrize("num_threads", [0, -1, 5000])
def test_impossible_thread_counts_are_refused(num_threads: int) -> None:
    with pytest.raises(KernelError, match="num_threads"):
        CpuBackend(DType.F32, num_threads)


def test_dtypes_beside_float32_and_bfloat16_are_refused() -> None:
    with pytest.raises(ConfigError, match="float16"):
        CpuBackend(DType.F16)


# ------------------------------------------------------------------------------ kernel tiers

TIERS = CpuBackend(DType.F32, 1).isa_tiers


def test_the_scalar_tier_is_everywhere_and_tiers_are_capped() -> None:
    assert TIERS[0] == "scalar"
    for i, tier in enumerate(TIERS):
        assert CpuBackend(DType.F32, 1, isa=tier).isa_tiers == TIERS[: i + 1]


def test_the_environment_caps_the_tier() -> None:
    script = """
        from octavo.contracts.tensor import DType
        from octavo.kernels.cpu import CpuBackend
        print(*CpuBackend(DType.BF16, 1).isa_tiers)
    """
    for i, tier in enumerate(TIERS):
        assert run_python(script, OCTAVO_CPU_ISA=tier).split() == TIERS[: i + 1]


def test_an_unknown_tier_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"OCTAVO_CPU_ISA=sse9 .*known: scalar"):
        CpuBackend(DType.F32, 1, isa="sse9")


# ------------------------------------------------------------------------------ arena


def test_a_tap_keeps_its_value_when_its_successor_could_overwrite_it(backend: CpuBackend) -> None:
    weight = backend.pack_linear([tensor(1, 24, 24)])

    def forward(ops: Ops) -> None:
        x = ops.input("x", 24)
        ops.output("before", x)
        y = ops.linear_add(ops.input("act", 24), weight, x)
        ops.output("after", y)

    x, act = randn(2, 200, 24), randn(3, 200, 24)
    taps = run_rows(backend, forward, {"x": x, "act": act})
    assert np.array_equal(taps["before"], x)
    assert np.allclose(taps["after"], x + act @ randn(1, 24, 24).T, atol=1e-4)


def test_layers_share_memory(backend: CpuBackend) -> None:
    norm = backend.pack_vector(tensor(1, 32))
    qkv, out = backend.pack_linear([tensor(2, 64, 32)]), backend.pack_linear([tensor(3, 32, 32)])
    gated = backend.pack_linear([tensor(4, 48, 32), tensor(5, 48, 32)], gated=True)
    down = backend.pack_linear([tensor(6, 32, 48)])
    kv = make_cache(backend, HEADS).layer("layer")

    def program(layers: int) -> Callable[[Ops], None]:
        def forward(ops: Ops) -> None:
            x = ops.input("x", 32)
            for _ in range(layers):
                q = ops.qkv_rope_store(ops.rms_norm(x, norm, eps=1e-5), qkv, kv, HEADS, None)
                x = ops.linear_add(ops.attention(q, kv, HEADS, scale=0.3), out, x)
                act = ops.gated_linear(ops.rms_norm(x, norm, eps=1e-5), gated, Activation.SILU)
                x = ops.linear_add(act, down, x)
            ops.output("out", x)

        return forward

    two, twelve = (backend.capture(program(layers), LIMITS).nbytes for layers in (2, 12))
    assert two == twelve


WIDTH = 40


class RandomProgram:
    """A program of random ops over values of one width, the same on every back end."""

    def __init__(self, backend: CpuBackend, choices: list[int]) -> None:
        self.weights = [backend.pack_linear([tensor(i, WIDTH, WIDTH, scale=0.1)]) for i in range(3)]
        gates = [tensor(7, WIDTH, WIDTH, scale=0.1), tensor(8, WIDTH, WIDTH, scale=0.1)]
        self.gated = backend.pack_linear(gates, gated=True)
        self.norm = backend.pack_vector(HostTensor.of(1 + randn(9, WIDTH, scale=0.1)))
        self.choices = choices

    def __call__(self, ops: Ops) -> None:
        stream, acts = [ops.input("x", WIDTH), ops.input("y", WIDTH)], [ops.input("x", WIDTH)]
        choices = iter(self.choices)
        for i, kind in enumerate(choices):
            x, y = (stream[next(choices, 0) % len(stream)] for _ in range(2))
            act = acts[next(choices, 0) % len(acts)]
            if kind % 5 == 0:
                value = ops.rms_norm(x, self.norm, eps=1e-5)
            elif kind % 5 == 1:
                value = ops.rms_norm_add(x, self.norm, y, eps=1e-5)
            elif kind % 5 == 2:
                value = ops.gated_linear(act, self.gated, Activation.SILU)
            elif kind % 5 == 3:
                value = ops.linear(act, self.weights[i % 3])
            else:
                value = ops.linear_add(act, self.weights[i % 3], y)
            kept = acts if kind % 5 in (0, 2) else stream
            kept[:] = [*kept[-3:], value]
            if next(choices, 1) % 3 == 0:
                ops.output(f"tap-{i}", value)
        ops.output("last", stream[-1])
        ops.output("chosen", ops.rms_norm(ops.select_rows(stream[-1]), self.norm, eps=1e-5))


POOLS = [CpuBackend(DType.F32, n) for n in (1, 2, 3)]


@settings(max_examples=30)
@given(st.lists(st.integers(0, 11), min_size=4, max_size=60), st.sampled_from([1, 5, 200, 400]))
def test_no_op_sees_memory_that_another_reused(choices: list[int], rows: int) -> None:
    """Against the reference back end, which never reuses memory, on every number of threads and on
    both sides of the size from which steps are split by rows."""
    extra = {"x": randn(20, rows, WIDTH), "y": randn(21, rows, WIDTH)}
    reference = make_backend("reference", DType.F32)
    graph = reference.capture(RandomProgram(reference, choices), LIMITS)
    taps = graph.replay(make_step([(0, rows)], extra=extra)).items()
    expected = {name: np.array(reference.to_numpy(tap)) for name, tap in taps}
    results = [run_rows(pool, RandomProgram(pool, choices), extra) for pool in POOLS]
    for name, values in expected.items():
        assert np.allclose(results[0][name], values, rtol=1e-3, atol=1e-3), name
        assert all(np.array_equal(r[name], results[0][name]) for r in results), name


# ------------------------------------------------------------------------------ refusals


@pytest.fixture
def model(backend: CpuBackend) -> tuple[CpuBackend, Callable[[Ops], None]]:
    """Every kind of op that reads a step's arrays."""
    table = backend.pack_linear([tensor(1, 50, 24)])
    norm = backend.pack_vector(tensor(6, 24))
    qkv = backend.pack_linear([tensor(2, 64, 24)])
    head = backend.pack_linear([tensor(3, 50, 32)])
    rope = backend.pack_rope(randn(4, 640, 4), randn(5, 640, 4), interleaved=False)
    kv = make_cache(backend, HEADS).layer("layer")

    def forward(ops: Ops) -> None:
        act = ops.rms_norm(ops.embedding(table), norm, eps=1e-5)
        q = ops.qkv_rope_store(act, qkv, kv, HEADS, rope)
        out = ops.attention(q, kv, HEADS, scale=0.3)
        ops.output("logits", ops.logits(ops.select_rows(out), head))

    return backend, forward


def _set(field: str, index: int, value: int) -> Callable[[StepInputs], None]:
    def change(step: StepInputs) -> None:
        getattr(step, field)[index] = value

    return change


def _set_group(field: str, index: tuple[int, ...], value: int) -> Callable[[StepInputs], None]:
    def change(step: StepInputs) -> None:
        getattr(step, field)[0][index] = value

    return change


def _replace(field: str, make: Callable[[np.ndarray], object]) -> Callable[[StepInputs], None]:
    def change(step: StepInputs) -> None:
        setattr(step, field, make(getattr(step, field)))

    return change


BROKEN_STEPS = {
    "token-negative": (_set("token_ids", 2, -1), r"token_ids\[2\]"),
    "token-too-large": (_set("token_ids", 0, 50), r"token_ids\[0\]"),
    "position-negative": (_set("positions", 0, -1), "positions"),
    "position-past-rope": (_set("positions", 0, 640), "positions"),
    "position-past-length": (_set("positions", 0, 9), "positions"),
    "row-past-tokens": (_set("logit_rows", 0, 12), "logit_rows"),
    "row-negative": (_set("logit_rows", 0, -1), "logit_rows"),
    "starts-late": (_set("query_start", 0, 1), "query_start"),
    "ends-early": (_set("query_start", 2, 11), "query_start"),
    "goes-back": (_set("query_start", 1, 13), "query_start"),
    "slot-negative": (_set_group("slot_mapping", (0,), -1), "slot_mapping"),
    "slot-too-large": (_set_group("slot_mapping", (0,), 64 * 16), "slot_mapping"),
    "null-block": (_set_group("block_tables", (0, 0), 0), "block_tables"),
    "block-too-large": (_set_group("block_tables", (1, 0), 64), "block_tables"),
    "too-few-blocks": (_replace("block_tables", lambda t: [t[0][:, :0].copy()]), "block_tables"),
    "too-few-tables": (_replace("block_tables", lambda t: [t[0][:1]]), "block_tables"),
    "no-tables": (_replace("block_tables", lambda t: []), "block_tables"),
    "few-slots": (_replace("slot_mapping", lambda s: [s[0][:3]]), "slot_mapping"),
    "few-positions": (_replace("positions", lambda p: p[:3]), "positions"),
    "wide-ids": (_replace("token_ids", lambda t: t.astype(np.int64)), "int32"),
    "strided": (_replace("positions", lambda p: np.repeat(p, 2)[::2]), "contiguous"),
    "a-list": (_replace("token_ids", lambda t: t.tolist()), "int32"),
}


@pytest.mark.parametrize("name", BROKEN_STEPS)
def test_a_broken_step_is_refused_and_the_next_one_runs(
    model: tuple[CpuBackend, Callable[[Ops], None]], name: str
) -> None:
    backend, forward = model
    graph = backend.capture(forward, LIMITS)
    good = graph.replay(make_step([(0, 8), (2, 4)]))["logits"].copy()
    step = make_step([(0, 8), (2, 4)])
    change, message = BROKEN_STEPS[name]
    change(step)
    with pytest.raises(KernelError, match=message):
        graph.replay(step)
    again = graph.replay(make_step([(0, 8), (2, 4)]))["logits"]
    assert np.array_equal(again, good)


def test_steps_past_the_limits_are_refused(
    model: tuple[CpuBackend, Callable[[Ops], None]],
) -> None:
    backend, forward = model
    limits = StepLimits(
        max_tokens=10, max_requests=2, max_logit_rows=2, max_blocks_per_request=8, max_position=64
    )
    graph = backend.capture(forward, limits)
    graph.replay(make_step([(0, 10)]))
    for queries, rows in (
        ([(0, 11)], None),
        ([(0, 1)] * 3, [0]),
        ([(0, 5)], [0, 1, 2]),
        ([(63, 2)], None),
    ):
        with pytest.raises(KernelError, match="step: "):
            graph.replay(make_step(queries, logit_rows=rows))


def test_an_empty_step_runs(model: tuple[CpuBackend, Callable[[Ops], None]]) -> None:
    backend, forward = model
    graph = backend.capture(forward, LIMITS)
    assert graph.replay(make_step([]))["logits"].shape == (0, 50)
    assert graph.replay(make_step([(0, 4)], logit_rows=[]))["logits"].shape == (0, 50)


def test_missing_and_misshapen_inputs_are_refused(backend: CpuBackend) -> None:
    graph = backend.capture(linear_forward(backend), LIMITS)
    for extra in ({}, {"x": randn(1, 3, 23)}, {"x": randn(1, 2, 24)}, {"x": randn(1, 3)}):
        with pytest.raises(KernelError):
            graph.replay(make_step([(0, 3)], extra=extra))
    with pytest.raises(KernelError):
        graph.replay(make_step([(0, 3)], extra={"x": np.ones((3, 24))}))


def test_ops_on_what_does_not_fit_are_refused(backend: CpuBackend) -> None:
    weight = backend.pack_linear([tensor(1, 40, 24)])
    gated = backend.pack_linear([tensor(1, 20, 24)] * 2, gated=True)
    vector = backend.pack_vector(tensor(1, 24))
    kv = make_cache(backend, HEADS).layer("layer")
    short = backend.pack_rope(randn(4, 100, 4), randn(5, 100, 4), interleaved=False)
    qkv = backend.pack_linear([tensor(2, 64, 24)])
    other = HeadShape(num_heads=4, num_kv_heads=1, head_dim=8)
    wrong: list[Callable[[Ops, Value], object]] = [
        lambda ops, x: ops.linear(ops.input("w", 25), weight),
        lambda ops, x: ops.linear(x, gated),
        lambda ops, x: ops.linear(x, vector),
        lambda ops, x: ops.gated_linear(x, weight, Activation.SILU),
        lambda ops, x: ops.linear_add(x, weight, x),
        lambda ops, x: ops.logits(x, weight),
        lambda ops, x: ops.rms_norm(ops.input("w", 25), vector, eps=1e-5),
        lambda ops, x: ops.rms_norm_add(x, vector, ops.select_rows(x), eps=1e-5),
        lambda ops, x: ops.select_rows(ops.select_rows(x)),
        lambda ops, x: ops.embedding(gated),
        lambda ops, x: ops.embedding(vector),
        lambda ops, x: ops.input("x", 30),
        lambda ops, x: ops.output("out", Value(99, x.rows, 24, DType.F32)),
        lambda ops, x: ops.qkv_rope_store(x, weight, kv, HEADS, None),
        lambda ops, x: ops.qkv_rope_store(x, qkv, kv, HEADS, short),
        lambda ops, x: ops.qkv_rope_store(x, qkv, kv, other, None),
        lambda ops, x: ops.attention(x, kv, HEADS, scale=1.0),
        lambda ops, x: ops.attention(ops.input("q", 32), kv, HEADS, scale=0.0),
    ]
    for op in wrong:

        def forward(ops: Ops, op: Callable[[Ops, Value], object] = op) -> None:
            op(ops, ops.input("x", 24))
            ops.output("x", ops.input("x", 24))

        with pytest.raises(KernelError):
            backend.capture(forward, LIMITS)
    with pytest.raises(KernelError, match="output"):
        backend.capture(lambda ops: None, LIMITS)


def test_arrays_are_read_anew_and_taps_stay_where_they_are(
    model: tuple[CpuBackend, Callable[[Ops], None]],
) -> None:
    """The same array with other values, and other arrays, give what they give a fresh graph."""
    backend, forward = model
    graph = backend.capture(forward, LIMITS)

    def fresh(step: StepInputs) -> np.ndarray:
        return backend.capture(forward, LIMITS).replay(step)["logits"].copy()

    step = make_step([(0, 8), (2, 4)])
    taps = graph.replay(step)
    first = taps["logits"].copy()
    step.token_ids[:] = (step.token_ids + 1) % 50
    again = graph.replay(step)
    assert again is taps
    assert not np.array_equal(again["logits"], first)
    assert np.array_equal(again["logits"], fresh(step))
    step.token_ids = (step.token_ids + 1) % np.int32(50)
    step.block_tables = [step.block_tables[0].copy()]
    assert np.array_equal(graph.replay(step)["logits"], fresh(step))
    other = make_step([(0, 8)])
    assert graph.replay(other)["logits"].shape == fresh(other).shape != first.shape
