"""The contract of every sampling op, on every back end.

A row alone equals the same row in any batch, at any place and on any number of threads, bit for
bit; other rows are left alone; and the values are those of a twin in numpy, to the bit for edits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import pytest
import torch

from octavo.contracts.tensor import DType
from octavo.errors import KernelError
from octavo.kernels.ops import Backend
from octavo.kernels.rng import uniform
from octavo.kernels.sampling_ops import SAMPLING_OPS, PenaltyRows, SamplingOps, SamplingRows
from tests.kernels.backends import BACKENDS, make_backend
from tests.sample.twin import TwinSampling, keep

VOCABS = (1, 31, 97, 1000)
NUM_ROWS = 12

Result = tuple[np.ndarray, ...]  # one entry per row of the call


@dataclass(frozen=True)
class SamplingCase:
    """A call of an op for some of the logits rows.

    Attributes:
        arguments: (vocab, row) → what the op is told about that row: a function of these alone.
        call: runs the op for rows and their arguments; returns its results per row, none for edits.
        all_rows: the op is about every row of the logits.
        is_exact: back ends agree to the bit.
    """

    op: str
    arguments: Callable[[int, int], Any]
    call: Callable[[SamplingOps, Any, np.ndarray, list[Any]], Result]
    all_rows: bool = False
    is_exact: bool = True


CASES: dict[str, SamplingCase] = {}


def logits_of(vocab: int, num_rows: int = NUM_ROWS) -> np.ndarray:
    """Rows as models give them, flat ones, ones with ties, with -inf and with NaN."""
    rows = []
    for row in range(num_rows):
        rng = np.random.default_rng([vocab, row])
        x = rng.standard_normal(vocab) * (3.0, 0.01, 8.0)[row % 3]
        if row % 4 == 1:
            x = np.round(x)
        if row % 4 == 2 and vocab > 1:
            x[rng.integers(0, vocab, vocab // 3)] = -np.inf
        if row % 4 == 3 and vocab > 1:
            x[rng.integers(0, vocab, 2)] = np.nan
        if not np.isfinite(x).any():
            x[0] = 0.0
        rows.append(x)
    return np.array(rows, dtype=np.float32)


def _rng(vocab: int, row: int) -> np.random.Generator:
    return np.random.default_rng([vocab, row, 99])


def _some_ids(vocab: int, row: int) -> np.ndarray:
    rng = _rng(vocab, row)
    return rng.permutation(vocab)[: rng.integers(0, vocab + 1)].astype(np.int32)


def _repeated(rows: np.ndarray, parts: list[np.ndarray]) -> np.ndarray:
    return np.repeat(rows, [len(p) for p in parts]).astype(np.int32)


def _mask(ops: SamplingOps, logits: Any, rows: np.ndarray, ids: list[np.ndarray]) -> Result:
    ops.mask(logits, _repeated(rows, ids), np.concatenate(ids))
    return ()


def _bitmask(vocab: int, row: int) -> np.ndarray:
    """Words of ones, of zeros, and mixed ones; bits behind the vocabulary are of any value."""
    rng = _rng(vocab, row)
    words = rng.integers(-(2**31), 2**31, -(-vocab // 32))
    words[rng.random(len(words)) < 0.3] = -1
    words[rng.random(len(words)) < 0.3] = 0
    return words.astype(np.int32)


def _allow(ops: SamplingOps, logits: Any, rows: np.ndarray, words: list[np.ndarray]) -> Result:
    ops.allow(logits, rows, np.stack(words))
    return ()


def _biased(vocab: int, row: int) -> tuple[np.ndarray, np.ndarray]:
    ids = _some_ids(vocab, row)
    return ids, (_rng(vocab, row).standard_normal(len(ids)) * 50).astype(np.float32)


def _add_bias(ops: SamplingOps, logits: Any, rows: np.ndarray, biased: list[Any]) -> Result:
    ids, bias = zip(*biased)
    ops.add_bias(logits, _repeated(rows, list(ids)), np.concatenate(ids), np.concatenate(bias))
    return ()


def _penalties(vocab: int, row: int) -> tuple[Any, ...]:
    ids, rng = _some_ids(vocab, row), _rng(vocab, row)
    counts = rng.integers(0, 4, len(ids)).astype(np.int32)
    repetition = (1.0, 1.3, 0.7, 1e-38, 3.4e38)[row % 5]
    return ids, counts, repetition, rng.uniform(-2, 2), rng.uniform(-2, 2)


def _penalize(ops: SamplingOps, logits: Any, rows: np.ndarray, penalties: list[Any]) -> Result:
    ids, counts, *values = zip(*penalties)
    repetition, frequency, presence = (np.array(v, dtype=np.float32) for v in values)
    ops.penalize(
        logits,
        rows,
        PenaltyRows(
            repetition=repetition,
            frequency=frequency,
            presence=presence,
            starts=np.cumsum([0, *map(len, ids)]).astype(np.int32),
            token_ids=np.concatenate(ids),
            counts=np.concatenate(counts),
        ),
    )
    return ()


def _sampling(vocab: int, row: int) -> dict[str, Any]:
    rng = _rng(vocab, row)
    return {
        "temperature": rng.choice([0.0, 0.5, 1.0, 1.7, 1e-38]),
        "top_k": rng.choice([0, 0, 1, 5, 60, 10**9]),
        "top_p": rng.choice([1.0, 0.9, 0.3]),
        "min_p": rng.choice([0.0, 0.0, 0.05]),
        "seed": rng.integers(0, 2**63),
        "sample_index": rng.integers(0, 4),
        "position": rng.integers(0, 4000),
    }


def _columns(rows: list[dict[str, Any]]) -> SamplingRows:
    dtypes = {"top_k": np.int32, "seed": np.uint64, "sample_index": np.int32, "position": np.int32}
    return SamplingRows(
        **{
            f.name: np.array([row[f.name] for row in rows], dtype=dtypes.get(f.name, np.float32))
            for f in fields(SamplingRows)
        }
    )


def _process(ops: SamplingOps, logits: Any, rows: np.ndarray, sampling: list[Any]) -> Result:
    ops.process(logits, rows, _columns(sampling))
    return ()


def _sample(ops: SamplingOps, logits: Any, rows: np.ndarray, sampling: list[Any]) -> Result:
    return (ops.sample(logits, _columns(sampling)),)


def _logprobs(normalized: bool, k: int) -> Callable[..., Result]:
    def call(ops: SamplingOps, logits: Any, rows: np.ndarray, tokens: list[int]) -> Result:
        ids = np.array(tokens, dtype=np.int32)
        width = min(k, logits.shape[1])
        return ops.logprobs(logits, rows, ids, width, normalized=normalized)

    return call


def _token(vocab: int, row: int) -> int:
    return int(_rng(vocab, row).integers(0, vocab))


CASES |= {
    "mask": SamplingCase("mask", _some_ids, _mask),
    "allow": SamplingCase("allow", _bitmask, _allow),
    "add_bias": SamplingCase("add_bias", _biased, _add_bias),
    "penalize": SamplingCase("penalize", _penalties, _penalize),
    "process": SamplingCase("process", _sampling, _process, is_exact=False),
    "sample": SamplingCase("sample", _sampling, _sample, all_rows=True, is_exact=False),
    "logprobs": SamplingCase("logprobs", _token, _logprobs(True, 3), is_exact=False),
    "logprobs-all": SamplingCase("logprobs", _token, _logprobs(True, 10**9), is_exact=False),
    "logprobs-logits": SamplingCase("logprobs", _token, _logprobs(False, 5)),
}
all_cases = pytest.mark.parametrize("case", CASES.values(), ids=CASES)
all_vocabs = pytest.mark.parametrize("vocab", VOCABS)


def run(
    case: SamplingCase, backend: Backend | None, logits: np.ndarray, rows: list[int], names: list
) -> tuple[np.ndarray, Result]:
    """The logits afterwards, and the results. `names`: which row's arguments each row has."""
    vocab = logits.shape[1]
    arguments = [case.arguments(vocab, name) for name in names]
    ops: SamplingOps = TwinSampling() if backend is None else backend.sampling
    is_torch = backend is not None and backend.name == "reference"
    on_device: Any = torch.from_numpy(logits.copy()) if is_torch else logits.copy()
    results = case.call(ops, on_device, np.array(rows, dtype=np.int32), arguments)
    after = on_device if backend is None else backend.to_numpy(on_device)
    return np.array(after), results


def assert_same(got: Result, want: Result, what: str) -> None:
    assert len(got) == len(want)
    for a, b in zip(got, want):
        assert a.dtype == b.dtype, what
        np.testing.assert_array_equal(a, b, what)


def test_every_op_has_a_case() -> None:
    assert set(SAMPLING_OPS) == {case.op for case in CASES.values()}


@all_cases
@all_vocabs
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_row_does_not_depend_on_the_others(backend: str, case: SamplingCase, vocab: int) -> None:
    made = make_backend(backend, DType.F32, 1)
    logits = logits_of(vocab)
    everything = list(range(NUM_ROWS))
    after, results = run(case, made, logits, everything, everything)
    order = np.random.default_rng(3).permutation(NUM_ROWS)
    moved, results_moved = run(case, made, logits[order], everything, order.tolist())
    assert_same((moved, *results_moved), (after[order], *(r[order] for r in results)), "moved")
    for row in everything:
        alone, of_row = run(case, made, logits[row : row + 1], [0], [row])
        in_batch = (after[row], *(r[row] for r in results))
        assert_same((alone[0], *(r[0] for r in of_row)), in_batch, "alone")
    if not case.all_rows:
        some = [1, 4, 9]
        partly, of_some = run(case, made, logits, some, some)
        others = np.delete(np.arange(NUM_ROWS), some)
        assert_same((partly[others],), (logits[others],), "rows that were not named")
        assert_same((partly[some], *of_some), (after[some], *(r[some] for r in results)), "some")


@all_cases
@all_vocabs
def test_rows_do_not_depend_on_threads(case: SamplingCase, vocab: int) -> None:
    everything = list(range(NUM_ROWS))
    found = [
        run(case, make_backend("cpu", DType.F32, n), logits_of(vocab), everything, everything)
        for n in (1, 2, 3)
    ]
    for logits, results in found[1:]:
        assert_same((logits, *results), (found[0][0], *found[0][1]), "threads")


@all_cases
@all_vocabs
@pytest.mark.parametrize("backend", BACKENDS)
def test_values_are_the_twins(backend: str, case: SamplingCase, vocab: int) -> None:
    made = make_backend(backend, DType.F32, 1)
    everything = [row for row in range(NUM_ROWS) if not _is_on_an_edge(case, vocab, row)]
    assert len(everything) >= NUM_ROWS - 2
    logits = logits_of(vocab)[everything]
    rows = list(range(len(everything)))
    if case.op == "logprobs":  # NaN counts as -inf
        logits[np.isnan(logits)] = -np.inf
    after, results = run(case, made, logits, rows, everything)
    expected, expected_results = run(case, None, logits, rows, everything)
    if case.is_exact:
        assert_same((after, *results), (expected, *expected_results), "")
        return
    if case.op == "process":
        np.testing.assert_array_equal(after, expected)
    for got, want in zip(results, expected_results):
        assert got.dtype == want.dtype
        np.testing.assert_allclose(got, want, rtol=2e-6, atol=2e-6)


def _is_on_an_edge(case: SamplingCase, vocab: int, row: int) -> bool:
    """Float32 weights may fall to the other side of a filter's cut, or of the draw."""
    if case.op not in ("sample", "process"):
        return False
    values = _sampling(vocab, row)
    if values["temperature"] == 0:
        return False
    filters = {name: float(np.float32(values[name])) for name in ("temperature", "top_p", "min_p")}
    filters["top_k"] = values["top_k"]
    x = logits_of(vocab)[row]
    x = np.where(np.isnan(x), -np.inf, x)
    kept = keep(x, **filters)
    for factor in (1 - 1e-5, 1 + 1e-5):
        near = {
            "top_p": filters["top_p"] * factor if filters["top_p"] < 1 else 1.0,
            "min_p": filters["min_p"] * factor,
        }
        if ((keep(x, **(filters | near)) > 0) != (kept > 0)).any():
            return True
    columns = _columns([values])
    draw = uniform(columns.seed, columns.position, columns.sample_index)[0]
    return case.op == "sample" and bool(np.abs(kept.cumsum() / kept.sum() - draw).min() < 1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
def test_penalties_by_hand(backend: str) -> None:
    case = CASES["penalize"]
    logits = np.array([[2.0, -2.0, 0.0, 3.0, -np.inf]], dtype=np.float32)
    made = make_backend(backend, DType.F32, 1)
    ids, counts = np.array([0, 1, 2, 4], np.int32), np.array([0, 3, 1, 2], np.int32)
    hand = SamplingCase("penalize", lambda vocab, row: (ids, counts, 2.0, 0.5, 0.25), case.call)
    after, _ = run(hand, made, logits, [0], [0])
    assert after.tolist() == [[1.0, -4.0 - 1.5 - 0.25, -0.75, 3.0, -np.inf]]


@pytest.mark.parametrize(
    ("op", "arguments"),
    [
        ("allow", (np.array([0], np.int32), np.zeros((1, 2), np.int32))),
        ("allow", (np.array([0, 1], np.int32), np.zeros((1, 1), np.int32))),
        ("allow", (np.array([1, 1], np.int32), np.zeros((2, 1), np.int32))),
        ("allow", (np.array([2], np.int32), np.zeros((1, 1), np.int32))),
        ("add_bias", (np.array([0], np.int32), np.array([10], np.int32), np.ones(1, np.float32))),
        ("add_bias", (np.array([0], np.int32), np.array([1], np.int32), np.ones(2, np.float32))),
        ("process", (np.array([1, 0], np.int32), _columns([_sampling(10, 0)] * 2))),
        ("process", (np.array([0], np.int32), _columns([_sampling(10, 0)] * 2))),
    ],
)
def test_what_does_not_fit_is_refused(op: str, arguments: tuple[Any, ...]) -> None:
    logits = np.zeros((2, 10), dtype=np.float32)
    with pytest.raises(KernelError):
        getattr(make_backend("cpu", DType.F32, 1).sampling, op)(logits, *arguments)
    assert not logits.any()


@pytest.mark.parametrize(
    "changes",
    [
        {"starts": [0, 1]},
        {"starts": [0, 2, 1]},
        {"starts": [1, 1, 2]},
        {"token_ids": [0, 10]},
        {"counts": [1]},
        {"presence": [0.0]},
        {"rows": [1, 0]},
        {"rows": [0, 0]},
    ],
)
def test_penalties_that_do_not_fit_are_refused(changes: dict[str, list[Any]]) -> None:
    logits = np.zeros((2, 10), dtype=np.float32)
    ints = {"rows": [0, 1], "starts": [0, 1, 2], "token_ids": [0, 1], "counts": [1, 1]}
    floats = {"repetition": [1.0, 1.0], "frequency": [1.0, 1.0], "presence": [1.0, 1.0]}
    columns = {
        name: np.array(changes.get(name, value), dtype=dtype)
        for table, dtype in ((ints, np.int32), (floats, np.float32))
        for name, value in table.items()
    }
    rows = columns.pop("rows")
    with pytest.raises(KernelError):
        make_backend("cpu", DType.F32, 1).sampling.penalize(logits, rows, PenaltyRows(**columns))
    assert not logits.any()
