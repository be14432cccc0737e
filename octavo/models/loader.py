"""From a stream of checkpoint tensors into a model's slots."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from octavo.contracts.tensor import DType, HostTensor
from octavo.errors import WeightsError
from octavo.kernels.ops import Backend
from octavo.models.base import CausalLM, WeightSlot
from octavo.quant.base import UNQUANTIZED, Quantization

_MAX_NAMED = 8
"""Tensors named per kind of fault; the others are counted."""

_INTEGERS = {DType.I8, DType.U8, DType.I32, DType.I64}


def load_weights(
    model: CausalLM,
    weights: Iterable[tuple[str, HostTensor]],
    backend: Backend,
    quantization: Quantization | None = None,
) -> int:
    """Fill all slots of a model, in formats that `quantization` chooses. Returns the bytes packed.
    Raises WeightsError, as `fitting_weights`; no more is packed once something is known to be at
    fault."""
    slots = {name: slot for slot in model.slots() for name in slot.expected()}
    return sum(
        slots[name].put(name, tensor, backend, quantization or UNQUANTIZED)
        for name, tensor in fitting_weights(model, weights)
    )


def fitting_weights(
    model: CausalLM, weights: Iterable[tuple[str, HostTensor]]
) -> Iterator[tuple[str, HostTensor]]:
    """The tensors that a model has slots for, under the slots' names, in the order they come.

    Raises:
        WeightsError: at the end: tensors missing, unknown, twice there, misshapen or of an integer
            type; one message names them all. None comes once one is known to be at fault.
    """
    slots = {name: slot for slot in model.slots() for name in slot.expected()}
    seen: set[str] = set()
    faults: dict[str, list[str]] = {
        kind: [] for kind in ("missing", "unknown", "twice", "misshapen", "integer")
    }
    unknown: list[str] = []
    for stored_name, tensor in weights:
        name = model.slot_name(stored_name)
        slot = slots.get(name)
        if slot is None:
            unknown.append(name)
            continue
        kind, text = _fault(name, tensor, slot, seen)
        seen.add(name)
        if kind:
            faults[kind].append(text)
        elif not any(faults.values()):
            yield name, tensor
    ignored = model.ignored(unknown)
    faults["unknown"] = [name for name in unknown if name not in ignored]
    faults["missing"] = [name for name in slots if name not in seen]
    if any(faults.values()):
        raise WeightsError(
            "the checkpoint does not fit the model: "
            + "; ".join(_list(kind, names) for kind, names in faults.items() if names)
        )


def _fault(name: str, tensor: HostTensor, slot: WeightSlot, seen: set[str]) -> tuple[str, str]:
    shape = slot.expected()[name]
    if name in seen:
        return "twice", name
    if tensor.shape != shape:
        return "misshapen", f"{name} {list(tensor.shape)} instead of {list(shape)}"
    if tensor.dtype in _INTEGERS:
        return "integer", f"{name} {tensor.dtype.value}"
    return "", ""


def _list(kind: str, names: Sequence[str]) -> str:
    more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    return f"{len(names)} {kind}: {', '.join(names[:_MAX_NAMED])}{more}"


def dummy_weights(model: CausalLM, seed: int) -> Iterator[tuple[str, HostTensor]]:
    """Random weights of the model's shapes, for tests and measurements.

    A tensor depends on the seed and its name alone. Matrices [N, K] are uniform with variance
    1 / K, which keeps activations near 1; biases are small, norms 1.
    """
    for slot in model.slots():
        for name, shape in slot.expected().items():
            yield name, HostTensor.of(_dummy(name, shape, seed))


def _dummy(name: str, shape: tuple[int, ...], seed: int) -> np.ndarray:
    if len(shape) == 1 and not name.endswith(".bias"):
        return np.ones(shape, dtype=np.float32)
    rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
    bound = np.float32(np.sqrt(3 / shape[-1]))
    values = rng.random(shape, dtype=np.float32)
    values -= np.float32(0.5)
    values *= 2 * bound
    return values
