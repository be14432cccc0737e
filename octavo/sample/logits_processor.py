"""Logits processors: code of the user's that edits logits. The names are vLLM's.

A class edits the rows of a whole batch. Classes are loaded when the engine starts: those of the
entry point group `octavo.logits_processors`, and those that `--logits-processors` names.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from typing import Any, Literal

import numpy as np

from octavo.contracts.sampling_params import SamplingParams
from octavo.errors import ConfigError

ENTRY_POINT_GROUP = "octavo.logits_processors"

Added = tuple[int, SamplingParams, "list[int]", "list[int]"]
"""(row, parameters, prompt ids, output ids); the last list grows with the output."""

Moved = tuple[int, int, Literal["move", "swap"]]
"""(from row, to row, whether what was there goes the other way)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchUpdate:
    """How the rows of the logits differ from those of the last step. To be followed in this order:
    `removed`, `added`, `moved`, each from its beginning to its end.

    Attributes:
        batch_size: rows there are now.
        removed: rows whose requests are not in the batch any more.
        added: requests that have come, also into rows of such that have gone.
        moved: requests that are in another row now.
    """

    batch_size: int
    removed: list[int] = field(default_factory=list)
    added: list[Added] = field(default_factory=list)
    moved: list[Moved] = field(default_factory=list)


class LogitsProcessor(ABC):
    """Edits logits. One object serves all requests of an engine.

    A request is in the batch while it gets tokens: from its last prompt chunk on, and not while it
    is preempted; then it leaves and comes back with the output that it has. So state per request
    should follow from its output ids. Where drafts are verified, a step has several batches, and
    drafts are at the end of the output ids.

    Args:
        vocab_size: columns of the logits.
        max_num_seqs: most rows.
    """

    def __init__(self, *, vocab_size: int, max_num_seqs: int) -> None:
        self.vocab_size = vocab_size
        self.max_num_seqs = max_num_seqs

    @classmethod  # noqa: B027 - most take any
    def validate_params(cls, params: SamplingParams) -> None:
        """Raise ValueError for parameters (`extra_args`, mostly) that this class cannot take: the
        request is refused with its text."""

    @classmethod
    def applies_to(cls, params: SamplingParams) -> bool:
        """Whether a request with such parameters is in this class's batch. One that is not has no
        row, costs nothing, and does not fail with it."""
        return True

    @abstractmethod
    def is_argmax_invariant(self) -> bool:
        """Whether the most likely token stays the same. If so, greedy requests are left out, and
        it comes after the temperature, before min-p, top-k and top-p. Else it comes after
        `logit_bias`, before the penalties. Asked once."""

    @abstractmethod
    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """What has changed since the last step: None for nothing but the output ids."""

    @abstractmethod
    def apply(self, logits: np.ndarray) -> np.ndarray | None:
        """Edit logits [batch_size, vocab] float32 in place, or return others of that shape.

        What it raises ends the requests in the batch, not the engine; afterwards there is a new
        object, to which the batch is new."""


def name_of(processor: str | type) -> str:
    """By which name the engine loads a class; a name stays."""
    if isinstance(processor, type):
        return f"{processor.__module__}:{processor.__qualname__}"
    return processor


def load_logits_processors(names: Sequence[str]) -> list[type[LogitsProcessor]]:
    """The installed classes (in order of their entry points' names), then those of `names`
    ("module:Class"), each once.

    Raises:
        ConfigError: one cannot be imported, or is no logits processor.
    """
    found: dict[Any, None] = {}
    for point in sorted(entry_points(group=ENTRY_POINT_GROUP), key=lambda point: point.name):
        found[_load(point.value)] = None
    for name in names:
        found[_load(name)] = None
    return list(found)


def _load(name: str) -> type[LogitsProcessor]:
    module, _, path = name.partition(":")
    try:
        loaded: Any = importlib.import_module(module)
        for part in path.split("."):
            loaded = getattr(loaded, part)
    except Exception as error:  # an import runs anything
        raise ConfigError(
            f"logits processor {name!r} cannot be loaded ({type(error).__name__}: {error}); it is "
            "named module:Class, of a module that can be imported"
        ) from error
    if not (isinstance(loaded, type) and issubclass(loaded, LogitsProcessor)):
        raise ConfigError(
            f"logits processor {name!r} is not a subclass of "
            "octavo.sample.logits_processor.LogitsProcessor"
        )
    return loaded
