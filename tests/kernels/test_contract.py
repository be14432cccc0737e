"""The contract of every op, on every back end.

A row alone equals the same row in any batch, at any place, in any chunk and on any number of
threads, bit for bit; what stale slots and other requests hold does not matter; and the values are
those of the reference.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pytest

from octavo.contracts.kv_spec import BlockCopy
from octavo.contracts.tensor import DType
from octavo.kernels.ops import OPS, StepInputs
from tests.kernels.backends import BACKENDS, DTYPES, make_backend
from tests.kernels.op_cases import CASES
from tests.kernels.op_lab import LIMITS, NUM_BLOCKS, VOCAB, Lab, OpCase

Key = tuple[int, int]  # (request, position)
Taps = dict[str, dict[Key, np.ndarray]]


@dataclass(frozen=True)
class Chunk:
    request: int
    start: int
    end: int


Plan = list[list[Chunk]]  # steps of chunks


def plans(lengths: tuple[int, ...]) -> dict[str, Plan]:
    """Ways to compute the same rows. Request len(lengths) is an intruder full of NaN."""
    whole = [Chunk(r, 0, n) for r, n in enumerate(lengths)]
    return {
        "together": [whole],
        "reversed": [whole[::-1]],
        "alone": [[chunk] for chunk in whole],
        "sevens": _round_robin(lengths, [7] * len(lengths)),
        "mixed": _round_robin(lengths, [1 if r == 2 else 33 for r in range(len(lengths))]),
        "decode": [
            [Chunk(r, 0, n - 3) for r, n in enumerate(lengths) if n > 3],
            *_round_robin(lengths, [1] * len(lengths), [max(0, n - 3) for n in lengths]),
        ],
        "intruder": [[*whole[:1], Chunk(len(lengths), 0, 19), *whole[1:]]],
    }


def _round_robin(
    lengths: tuple[int, ...], sizes: list[int], starts: list[int] | None = None
) -> Plan:
    done = list(starts or [0] * len(lengths))
    steps = []
    while any(d < n for d, n in zip(done, lengths)):
        chunks = [
            Chunk(r, done[r], min(done[r] + sizes[r], n))
            for r, n in enumerate(lengths)
            if done[r] < n
        ]
        steps.append(chunks)
        for chunk in chunks:
            done[chunk.request] = chunk.end
    return steps


class Bench:
    """A case captured on a back end."""

    def __init__(self, case: OpCase, lab: Lab) -> None:
        self.case, self.lab = case, lab
        self.graph = lab.backend.capture(case.build(lab), LIMITS)
        self._inputs: dict[tuple[str, int], np.ndarray] = {}

    def run(self, plan: Plan, *, seed: int = 0, acts: dict[Key, np.ndarray] | None = None) -> Taps:
        """Compute a plan on blocks in an order of its own, after all of them held NaN.

        `acts` are the rows of the input "act", where the case has one. Rows of the intruder are
        not returned.
        """
        if self.lab.cache is not None:
            self._poison()
        blocks = iter(np.random.default_rng(seed).permutation(np.arange(1, NUM_BLOCKS)))
        tables: dict[int, np.ndarray] = {}
        taps: Taps = {}
        for step in plan:
            for chunk in step:
                table = tables.setdefault(chunk.request, _empty_table())
                for b in range(-(-chunk.end // 16)):
                    table[b] = table[b] or next(blocks)
            keys = _keys(step)
            chosen = [keys[i] for i in _logit_rows(keys)]
            for name, rows in self.step(step, tables, acts=acts).items():
                of_rows = keys if len(rows) == len(keys) else chosen
                assert len(rows) == len(of_rows)
                taps.setdefault(name, {}).update(zip(of_rows, rows))
        num_requests = len(self.case.lengths)
        return {
            n: {k: r for k, r in rows.items() if k[0] < num_requests} for n, rows in taps.items()
        }

    def step(
        self,
        chunks: list[Chunk],
        tables: dict[int, np.ndarray],
        *,
        acts: dict[Key, np.ndarray] | None = None,
    ) -> dict[str, np.ndarray]:
        """Replay one step. `tables`: request → block ids."""
        keys = _keys(chunks)
        slots = [int(tables[r][p // 16]) * 16 + p % 16 for r, p in keys]
        block_tables = np.stack([self._windowed(tables[c.request], c.start) for c in chunks])
        step = StepInputs(
            token_ids=np.array([(17 * r + 31 * p) % VOCAB for r, p in keys], dtype=np.int32),
            positions=np.array([p for _, p in keys], dtype=np.int32),
            query_start=np.cumsum([0, *(c.end - c.start for c in chunks)]).astype(np.int32),
            seq_lens=np.array([c.end for c in chunks], dtype=np.int32),
            block_tables=[block_tables],
            slot_mapping=[np.array(slots, dtype=np.int32)],
            logit_rows=np.array(_logit_rows(keys), dtype=np.int32),
            extra={
                name: np.stack([self._input(name, width, key, acts) for key in keys])
                for name, width in self.lab.widths.items()
            },
        )
        taps = self.graph.replay(step)
        return {name: np.array(self.lab.backend.to_numpy(tap)) for name, tap in taps.items()}

    def _windowed(self, table: np.ndarray, start: int) -> np.ndarray:
        """The table without the blocks that no token from `start` on can see."""
        table = table.copy()
        if self.lab.window is not None:
            table[: max(0, start - self.lab.window + 1) // 16] = 0
        return table

    def _input(
        self, name: str, width: int, key: Key, acts: dict[Key, np.ndarray] | None
    ) -> np.ndarray:
        request, position = key
        if request >= len(self.case.lengths):
            return np.full(width, np.nan, dtype=np.float32)
        if name == "act":
            assert acts is not None
            return acts[key]
        if (name, request) not in self._inputs:
            rng = np.random.default_rng([zlib.crc32(name.encode()), request])
            shape = (self.case.lengths[request], width)
            self._inputs[name, request] = rng.standard_normal(shape).astype(np.float32)
        return self._inputs[name, request][position]

    def _poison(self) -> None:
        """Leave NaN in every slot, as an earlier request may have."""
        intruder = len(self.case.lengths)
        table = _empty_table()
        table[0] = 1
        self.step([Chunk(intruder, 0, 16)], {intruder: table})
        assert self.lab.cache is not None
        self.lab.cache.copy_blocks([BlockCopy(src=1, dst=b) for b in range(2, NUM_BLOCKS)])


def _empty_table() -> np.ndarray:
    return np.zeros(LIMITS.max_blocks_per_request, dtype=np.int32)


def _keys(chunks: Iterable[Chunk]) -> list[Key]:
    return [(c.request, p) for c in chunks for p in range(c.start, c.end)]


def _logit_rows(keys: list[Key]) -> list[int]:
    """Some rows of a step, none in some steps: a function of the key alone."""
    return [i for i, (request, position) in enumerate(keys) if (request + position) % 3 != 1]


def _bench(case: OpCase, backend: str, dtype: DType, num_threads: int | None = None) -> Bench:
    return Bench(case, Lab(make_backend(backend, dtype, num_threads), case.name))


all_cases = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
all_dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.value)


def test_every_op_has_a_case() -> None:
    assert set(OPS) == {case.op for case in CASES}


@all_cases
@all_dtypes
@pytest.mark.parametrize("backend", BACKENDS)
def test_rows_do_not_depend_on_the_batch(backend: str, case: OpCase, dtype: DType) -> None:
    bench = _bench(case, backend, dtype)
    expected: Taps = {}
    for seed, (name, plan) in enumerate(plans(case.lengths).items()):
        taps = bench.run(plan, seed=seed)
        expected = expected or taps
        _assert_same(taps, expected, name)
    finite = all(np.isfinite(row).all() for rows in expected.values() for row in rows.values())
    assert finite, "NaN got in"


@all_cases
@all_dtypes
@pytest.mark.parametrize("num_threads", [2, 3])
def test_rows_do_not_depend_on_threads(case: OpCase, dtype: DType, num_threads: int) -> None:
    for name in ("together", "mixed"):
        plan = plans(case.lengths)[name]
        expected = _bench(case, "cpu", dtype, 1).run(plan)
        taps = _bench(case, "cpu", dtype, num_threads).run(plan)
        _assert_same(taps, expected, f"{name} on {num_threads} threads")


def _assert_same(taps: Taps, expected: Taps, plan: str) -> None:
    for tap, rows in expected.items():
        assert taps[tap].keys() == rows.keys(), f"{plan}: {tap}"
        wrong = [key for key, row in rows.items() if not np.array_equal(taps[tap][key], row)]
        assert not wrong, f"{plan}: {tap} differs at (request, position) {wrong[:8]}"


ROUNDED_ONCE = {
    *("input", "embedding", "rms_norm_add", "linear", "linear_add", "logits", "argmax"),
    *("all_reduce", "signal", "wait"),
}
"""Ops whose result is float32 whatever the activation format is."""


@all_cases
@all_dtypes
def test_values_are_the_references(case: OpCase, dtype: DType) -> None:
    """On the very same activations: those that the back end under test made itself.

    The reference is right to half a unit in the last place. Float32 sums of K terms of either sign
    err by about √K half units of their terms' size, 2⁻²⁴ · √1600 < 2⁻¹⁸; bfloat16 results, and
    probabilities that are rounded to bfloat16, by a few times 2⁻⁸.
    """
    plan = plans(case.lengths)["together"]
    taps = _bench(case, "cpu", dtype).run(plan)
    lab = Lab(make_backend("reference", dtype), case.name, act_taps=False)
    expected = Bench(case, lab).run(plan, acts=taps.get("act"))
    exact = dtype is DType.F32 or case.op in ROUNDED_ONCE
    tolerance = 2.0**-17 if exact else 2.0**-6
    for tap, rows in expected.items():
        size = np.sqrt(np.mean([np.mean(row**2) for row in rows.values()]))
        for key, row in rows.items():
            error = np.abs(taps[tap][key] - row)
            assert (error <= tolerance * (np.abs(row) + size)).all(), (
                f"{tap} at {key}: {error.max()}"
            )


@pytest.mark.parametrize("backend", BACKENDS)
@all_dtypes
def test_copied_blocks_continue_alike(backend: str, dtype: DType) -> None:
    case = next(case for case in CASES if case.name == "attention-long")
    bench = _bench(case, backend, dtype)
    first, second = _empty_table(), _empty_table()
    first[:3], second[:3] = [4, 2, 9], [7, 3, 5]
    bench.step([Chunk(0, 0, 40)], {0: first})
    expected = bench.step([Chunk(0, 40, 48)], {0: first})["out"]
    # Copies run in order: block 7 gets block 2's bytes for a moment.
    assert bench.lab.cache is not None
    pairs = [(2, 7), (4, 7), (2, 3), (9, 5)]
    bench.lab.cache.copy_blocks([BlockCopy(src=src, dst=dst) for src, dst in pairs])
    bench.lab.cache.clear_blocks([4, 2, 9])
    taps = bench.step([Chunk(0, 40, 48)], {0: second})
    assert np.array_equal(taps["out"], expected)


@pytest.mark.parametrize("backend", BACKENDS)
@all_dtypes
def test_new_and_cleared_blocks_hold_zeros(backend: str, dtype: DType) -> None:
    case = next(case for case in CASES if case.name == "qkv_rope_store-no-rope")
    table = _empty_table()
    table[0] = 3
    last = [Chunk(1, 4, 5)]  # its positions 0 … 3 were never stored
    new = _bench(case, backend, dtype).step(last, {1: table})["out"]
    assert np.isfinite(new).all()
    bench = _bench(case, backend, dtype)
    bench.step([Chunk(1, 0, 5)], {1: table})
    assert not np.array_equal(bench.step(last, {1: table})["out"], new)
    assert bench.lab.cache is not None
    bench.lab.cache.clear_blocks([3])
    assert np.array_equal(bench.step(last, {1: table})["out"], new)
