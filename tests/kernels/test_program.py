"""What a step program does with the world: outputs on demand, calls, ranks, counters, weights that
change under it. On every back end where it is the op's meaning, on the CPU where it is the way."""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections.abc import Callable
from multiprocessing.shared_memory import SharedMemory
from typing import Any

import numpy as np
import pytest

from octavo.contracts.tensor import DType, HostTensor
from octavo.errors import KernelError
from octavo.kernels.cpu import CpuBackend, CpuGraph
from octavo.kernels.ops import Activation, Backend, Graph, HeadShape, Ops, Weight
from octavo.kernels.sync import Collective
from tests.kernels.backends import BACKENDS, DTYPES, make_backend
from tests.kernels.cpu_steps import LIMITS, make_cache, make_step, randn, tensor

backends = pytest.mark.parametrize("name", BACKENDS)
dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.value)
threads = pytest.mark.parametrize("num_threads", [1, 2, 3])


def cpu(num_threads: int = 2, dtype: DType = DType.F32) -> CpuBackend:
    backend = make_backend("cpu", dtype, num_threads)
    assert isinstance(backend, CpuBackend)
    return backend


def ones(backend: Backend, width: int) -> Weight:
    return backend.pack_vector(HostTensor.of(np.ones(width, dtype=np.float32)))


def inputs(rows: int, width: int, name: str = "x") -> dict[str, np.ndarray]:
    return {name: randn(1, rows, width)}


class TestOutputs:
    """A run computes what is asked for, and what it stores."""

    @backends
    def test_only_the_wanted_ones_come(self, name: str) -> None:
        backend = make_backend(name, DType.F32, 2)
        weight = backend.pack_linear([tensor(2, 40, 32)])

        def forward(ops: Ops) -> None:
            x = ops.rms_norm(ops.input("x", 32), ones(backend, 32), eps=1e-6)
            ops.output("act", x)
            ops.output("y", ops.linear(x, weight))

        graph = backend.capture(forward, LIMITS)
        step = make_step([(0, 5)], extra=inputs(5, 32))
        everything = {k: backend.to_numpy(v).copy() for k, v in graph.replay(step).items()}
        assert set(everything) == {"act", "y"}
        for wanted in ((), ("y",), ("act",), ("y", "act")):
            step.outputs = wanted
            taps = graph.replay(step)
            assert set(taps) == set(wanted)
            for tap in wanted:
                assert np.array_equal(backend.to_numpy(taps[tap]), everything[tap])
        step.outputs = ("z",)
        with pytest.raises(KernelError, match="z"):
            graph.replay(step)

    def test_what_nobody_wants_is_not_computed(self) -> None:
        backend = cpu()
        weight = backend.pack_linear([tensor(2, 32, 32)])

        def forward(ops: Ops) -> None:
            x = ops.rms_norm(ops.input("x", 32), ones(backend, 32), eps=1e-6)
            ops.output("first", ops.linear(x, weight))
            ops.output("second", ops.linear_add(x, weight, ops.linear(x, weight)))

        graph = backend.capture(forward, LIMITS)
        assert isinstance(graph, CpuGraph)
        graph.set_profiling(True)
        step = make_step([(0, 3)], extra=inputs(3, 32))
        step.outputs = ("first",)
        graph.replay(step)
        calls = [op for op, seconds in graph.profile() if seconds > 0]
        assert calls.count("linear") == 1
        assert "linear_add" not in calls

    @threads
    @pytest.mark.parametrize("rows", [1, 2, 3, 100])
    def test_keys_and_values_are_stored_whatever_is_wanted(
        self, num_threads: int, rows: int
    ) -> None:
        heads = HeadShape(num_heads=2, num_kv_heads=1, head_dim=16)
        expected = None
        for wanted in (None, ()):
            backend = cpu(num_threads)
            weight = backend.pack_linear([tensor(2, 64, 32)])
            kv = make_cache(backend, heads).layer("layer")

            def forward(ops: Ops, backend=backend, weight=weight, kv=kv) -> None:
                x = ops.rms_norm(ops.input("x", 32), ones(backend, 32), eps=1e-6)
                q = ops.qkv_rope_store(x, weight, kv, heads, None)
                ops.output("out", ops.attention(q, kv, heads, scale=0.25))

            graph = backend.capture(forward, LIMITS)
            first = make_step([(0, rows)], extra=inputs(rows, 32))
            first.outputs = wanted
            graph.replay(first)
            step = make_step([(rows, 1)], extra=inputs(1, 32))
            out = graph.replay(step)["out"].copy()
            assert expected is None or np.array_equal(out, expected)
            expected = out


class TestSmallSteps:
    """Steps of a row or two, where every thread normalizes for itself."""

    @dtypes
    @pytest.mark.parametrize("rows", [1, 2, 3])
    def test_a_residual_is_updated_in_place_beside_replicated_norms(
        self, dtype: DType, rows: int
    ) -> None:
        """Whatever comes behind a norm: an update in place of what it reads, two readers, a tap."""
        results = []
        size = 64
        for num_threads in (1, 2, 3):
            backend = cpu(num_threads, dtype)
            norm = ones(backend, size)
            square = backend.pack_linear([tensor(3, size, size)])
            gate = backend.pack_linear([tensor(4, size, size), tensor(5, size, size)], gated=True)

            def forward(ops: Ops, norm=norm, square=square, gate=gate) -> None:
                x = ops.input("x", size)
                for _ in range(40):
                    x = ops.linear_add(ops.rms_norm(x, norm, eps=1e-6), square, x)
                    y = ops.layer_norm(x, norm, None, eps=1e-6)
                    x = ops.linear_add(ops.gated_linear(y, gate, Activation.SILU), square, x)
                    x = ops.rms_norm_add(ops.linear(y, square), norm, x, eps=1e-6)
                last = ops.rms_norm(x, norm, eps=1e-6)
                ops.output("tapped", last)
                ops.output("out", ops.linear(last, square))

            graph = backend.capture(forward, LIMITS)
            for _ in range(5):
                taps = graph.replay(make_step([(0, rows)], extra=inputs(rows, size)))
                results.append([backend.to_numpy(taps[tap]).copy() for tap in ("tapped", "out")])
        for result in results:
            assert all(np.array_equal(a, b) for a, b in zip(result, results[0]))
            assert all(np.isfinite(a).all() for a in result)


class TestArgmax:
    """The best logit without the others."""

    @dtypes
    @threads
    def test_equals_the_best_of_the_logits(self, dtype: DType, num_threads: int) -> None:
        backend = cpu(num_threads, dtype)
        weight = backend.pack_linear([tensor(6, 1000, 64)])

        def forward(ops: Ops) -> None:
            x = ops.rms_norm(ops.input("x", 64), ones(backend, 64), eps=1e-6)
            chosen = ops.select_rows(x)
            ops.output("logits", ops.logits(chosen, weight, scale=3.0, soft_cap=2.0))
            ops.output("best", ops.argmax(chosen, weight, scale=3.0, soft_cap=2.0))

        graph = backend.capture(forward, LIMITS)
        for rows in (1, 2, 7, 60):
            step = make_step([(0, rows)], extra=inputs(rows, 64), logit_rows=range(rows))
            taps = graph.replay(step)
            assert np.array_equal(taps["best"][:, 0], taps["logits"].argmax(axis=1))
            assert np.array_equal(taps["best"][:, 1], taps["logits"].max(axis=1))

    @backends
    @pytest.mark.parametrize("num_threads", [1, 2, 3])
    def test_ties_go_to_the_lowest_and_nan_to_nobody(self, name: str, num_threads: int) -> None:
        backend = make_backend(name, DType.F32, num_threads)
        rows = np.zeros((70, 2), dtype=np.float32)
        rows[[9, 33, 69], 0] = 5.0  # three equal columns, in three panels
        rows[40] = np.nan
        weight = backend.pack_linear([HostTensor.of(rows)])

        def forward(ops: Ops) -> None:
            ops.output("best", ops.argmax(ops.select_rows(ops.input("x", 2)), weight))

        graph = backend.capture(forward, LIMITS)
        x = np.array([[1, 0], [-1, 0], [np.nan, 0], [np.inf, 0]], dtype=np.float32)
        step = make_step([(0, 4)], extra={"x": x}, logit_rows=range(4))
        with np.errstate(invalid="ignore"):
            best = backend.to_numpy(graph.replay(step)["best"])
        # -1: all others are 0 (the padding of the last panel would be, too). NaN: nothing is left.
        assert best.tolist() == [[9, 5], [0, 0], [0, -np.inf], [9, np.inf]]


class TestHostCalls:
    @backends
    @dtypes
    def test_see_all_rows_and_change_a_copy(self, name: str, dtype: DType) -> None:
        backend = make_backend(name, dtype, 2)
        seen: list[np.ndarray] = []

        def add_one(rows: np.ndarray) -> None:
            seen.append(rows.copy())
            rows += 1

        def forward(ops: Ops) -> None:
            x = ops.input("x", 33)
            ops.output("out", ops.host_call(x, add_one))
            ops.output("x", x)

        graph = backend.capture(forward, LIMITS)
        x = inputs(50, 33)["x"]
        taps = graph.replay(make_step([(0, 50)], extra={"x": x}))
        assert len(seen) == 1
        assert np.array_equal(seen[0], x)
        assert np.array_equal(backend.to_numpy(taps["x"]), x)
        assert np.array_equal(backend.to_numpy(taps["out"]), x + 1)

    @backends
    @pytest.mark.parametrize("rows", [1, 100])
    @pytest.mark.parametrize("error", [ValueError("no"), TypeError("neither")], ids=str)
    def test_that_fail_end_the_step_alone(self, name: str, rows: int, error: Exception) -> None:
        backend = make_backend(name, DType.F32, 3)
        fails = [True]
        square = backend.pack_linear([tensor(3, 32, 32)])

        def call(_: np.ndarray) -> None:
            if fails[0]:
                raise error

        def forward(ops: Ops) -> None:
            x = ops.rms_norm(ops.input("x", 32), ones(backend, 32), eps=1e-6)
            y = ops.host_call(ops.linear(x, square), call)
            ops.output("out", ops.linear_add(x, square, y))

        graph = backend.capture(forward, LIMITS)
        step = make_step([(0, rows)], extra=inputs(rows, 32))
        for _ in range(3):
            fails[0] = True
            with pytest.raises(type(error), match=str(error)):
                graph.replay(step)
            fails[0] = False
            assert np.isfinite(backend.to_numpy(graph.replay(step)["out"])).all()


class Board(Collective):
    """Ranks that share a piece of memory: each writes its rows, all add them up in order."""

    def __init__(
        self, rank: int, size: int, memory: np.ndarray, wait: Callable[[], object]
    ) -> None:
        self.rank, self.size = rank, size
        self._memory, self._wait = memory, wait

    def all_reduce(self, rows: np.ndarray) -> None:
        slots = self._memory[:, : rows.size].reshape(self.size, *rows.shape)
        slots[self.rank] = rows
        self._wait()
        rows[:] = 0
        for part in slots:
            rows += part
        self._wait()


def _row_parallel(rank: int, size: int, group: Collective, backend: Backend) -> np.ndarray:
    """A layer whose K is cut into `size` parts, summed over the ranks."""
    whole = tensor(7, 48, 64).data
    part = slice(rank * 64 // size, (rank + 1) * 64 // size)
    weight = backend.pack_linear([HostTensor.of(np.ascontiguousarray(whole[:, part]))])

    def forward(ops: Ops) -> None:
        x = ops.input("x", 64 // size, backend.dtype)
        ops.output("out", ops.all_reduce(ops.linear(x, weight), group))

    graph = backend.capture(forward, LIMITS)
    x = randn(8, 5, 64)[:, part]
    for _ in range(3):
        taps = graph.replay(make_step([(0, 5)], extra={"x": x}))
    return np.array(backend.to_numpy(taps["out"]))


def _in_process(rank: int, memory_name: str, barrier: Any, results: Any) -> None:
    memory = SharedMemory(memory_name)
    board = np.frombuffer(memory.buf, np.float32).reshape(2, -1)
    try:
        rows = _row_parallel(rank, 2, Board(rank, 2, board, barrier.wait), cpu(1))
    finally:
        del board
        memory.close()
    results.put((rank, rows.tobytes()))


class TestCollectives:
    def test_two_threads_sum_their_parts(self) -> None:
        barrier = threading.Barrier(2, timeout=60)
        memory = np.zeros((2, 1000), dtype=np.float32)
        results: dict[int, np.ndarray] = {}

        def rank(r: int) -> None:
            results[r] = _row_parallel(r, 2, Board(r, 2, memory, barrier.wait), cpu(1))

        workers = [threading.Thread(target=rank, args=(r,)) for r in range(2)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert np.array_equal(results[0], results[1])
        expected = randn(8, 5, 64) @ tensor(7, 48, 64).data.T
        assert np.allclose(results[0], expected, atol=1e-5)

    def test_two_processes_sum_their_parts(self) -> None:
        """In shared memory; the same bits as from two threads."""
        context = multiprocessing.get_context("spawn")
        memory = SharedMemory(create=True, size=2 * 4096)
        barrier, results = context.Barrier(2, timeout=60), context.Queue()
        ranks = [
            context.Process(target=_in_process, args=(r, memory.name, barrier, results))
            for r in range(2)
        ]
        for process in ranks:
            process.start()
        got = dict(results.get(timeout=60) for _ in ranks)
        for process in ranks:
            process.join()
            assert process.exitcode == 0
        memory.close()
        memory.unlink()
        assert got[0] == got[1]
        values = np.frombuffer(got[0], np.float32).reshape(5, 48)
        assert np.allclose(values, randn(8, 5, 64) @ tensor(7, 48, 64).data.T, atol=1e-5)

    @backends
    def test_add_float32_only(self, name: str) -> None:
        backend = make_backend(name, DType.BF16, 1)
        group = Board(0, 1, np.zeros((1, 10), np.float32), lambda: None)

        def forward(ops: Ops) -> None:
            x = ops.rms_norm(ops.input("x", 8), ones(backend, 8), eps=1e-6)
            ops.output("out", ops.all_reduce(x, group))

        with pytest.raises(KernelError, match="float32"):
            backend.capture(forward, LIMITS)


class TestCounters:
    @backends
    def test_a_step_signals_when_it_gets_there(self, name: str) -> None:
        backend = make_backend(name, DType.F32, 2)
        heard: list[tuple[int, int]] = []

        def forward(ops: Ops) -> None:
            x = ops.input("x", 8)
            ops.signal(0)
            x = ops.host_call(x, lambda _: heard.append((counters.value(0), counters.value(2))))
            ops.signal(2)
            ops.output("out", x)

        graph = backend.capture(forward, LIMITS)
        counters = graph.counters
        assert len(counters) == 3
        for _ in range(2):
            graph.replay(make_step([(0, 2)], extra=inputs(2, 8)))
        assert heard == [(1, 0), (2, 1)]
        assert [counters.value(k) for k in range(3)] == [2, 0, 2]
        with pytest.raises(KernelError, match="counter 3"):
            counters.value(3)

    @backends
    def test_a_step_waits_for_another_thread(self, name: str) -> None:
        backend = make_backend(name, DType.F32, 2)
        order: list[str] = []

        def forward(ops: Ops) -> None:
            x = ops.host_call(ops.input("x", 8), lambda _: order.append("before"))
            ops.wait(0)
            ops.output("out", ops.host_call(x, lambda _: order.append("behind")))

        graph = backend.capture(forward, LIMITS)
        step = make_step([(0, 2)], extra=inputs(2, 8))
        graph.replay(step)  # no targets: no wait
        step.counter_targets = np.array([3], dtype=np.int64)
        order.clear()
        runner = threading.Thread(target=graph.replay, args=(step,))
        runner.start()
        while not order:
            time.sleep(0.001)
        graph.counters.add(0, 2)
        assert not graph.counters.wait(0, 3, timeout=0.02)
        order.append("loaded")
        graph.counters.add(0)
        runner.join()
        assert order == ["before", "loaded", "behind"]

    @backends
    def test_a_wait_that_cannot_end_is_cancelled(self, name: str) -> None:
        backend = make_backend(name, DType.F32, 2)

        def forward(ops: Ops) -> None:
            x = ops.input("x", 8)
            ops.wait(0)
            ops.output("out", x)

        graph = backend.capture(forward, LIMITS)
        step = make_step([(0, 2)], extra=inputs(2, 8))
        step.counter_targets = np.array([1], dtype=np.int64)
        timer = threading.Timer(0.02, graph.counters.cancel, args=("the disk is gone",))
        timer.start()
        with pytest.raises(KernelError, match="the disk is gone"):
            graph.replay(step)
        timer.join()
        step.counter_targets = None
        assert set(graph.replay(step)) == {"out"}
        step.counter_targets = np.zeros(2, dtype=np.int64)
        with pytest.raises(KernelError, match="counter_targets"):
            graph.replay(step)


class TestWeights:
    """Graphs reach weights through their handles."""

    @backends
    @dtypes
    def test_swapped_weights_are_in_force(self, name: str, dtype: DType) -> None:
        backend = make_backend(name, dtype, 2)

        def model(seed: int) -> list[Weight]:
            return [
                backend.pack_embedding(tensor(seed, 50, 32)),
                backend.pack_vector(tensor(seed, 32)),
                backend.pack_linear([tensor(seed, 40, 32)], [tensor(seed + 9, 40)]),
            ]

        def run(weights: list[Weight]) -> np.ndarray:
            def forward(ops: Ops) -> None:
                x = ops.rms_norm(ops.embedding(weights[0]), weights[1], eps=1e-6)
                ops.output("out", ops.linear(x, weights[2]))

            graph = backend.capture(forward, LIMITS)
            graphs.append(graph)
            return replay(graph)

        def replay(graph: Graph) -> np.ndarray:
            return np.array(backend.to_numpy(graph.replay(make_step([(0, 5)]))["out"]))

        graphs: list[Graph] = []
        first, second = model(1), model(2)
        of_first, of_second = run(first), run(second)
        assert not np.array_equal(of_first, of_second)
        for a, b in zip(first, second):
            backend.swap(a, b)
        assert np.array_equal(replay(graphs[0]), of_second)
        assert np.array_equal(replay(graphs[1]), of_first)

        for weight in first:  # the model sleeps, and is loaded anew
            backend.unload(weight)
        with pytest.raises(KernelError, match="unloaded"):
            replay(graphs[0])
        for weight, fresh in zip(first, model(1)):
            backend.swap(weight, fresh)
        assert np.array_equal(replay(graphs[0]), of_first)

    @backends
    def test_only_like_weights_are_swapped(self, name: str) -> None:
        backend = make_backend(name, DType.F32, 1)
        weight = backend.pack_linear([tensor(1, 40, 32)])
        with pytest.raises(KernelError):
            backend.swap(weight, backend.pack_linear([tensor(1, 32, 32)]))
        with pytest.raises(KernelError):
            backend.swap(weight, ones(backend, 32))
