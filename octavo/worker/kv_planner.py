"""From what each layer keeps to groups that share one pool of blocks.

All groups draw from one pool, so they have the same number of layers and the same page size (see
`contracts.kv_spec`). Layers of one spec form a group; where specs differ in number of layers, the
smallest number is the group size and larger specs are split into several groups, the last of them
short (Gemma 3 with 22 sliding and 4 full layers: one full group, six sliding ones).
"""

from __future__ import annotations

from collections.abc import Mapping

from octavo.contracts.kv_spec import KVCacheGroup, KVCacheSpec
from octavo.errors import UnsupportedModelError

_ALMOST_EQUAL = 1.5
"""A largest count below this times the smallest becomes the group size: padding the smaller specs
wastes less than splitting the larger (13 and 12 layers: 2 groups of 13, not 3 of 12)."""


def group_layers(specs: Mapping[str, KVCacheSpec]) -> tuple[KVCacheGroup, ...]:
    """The KV groups of a model.

    Args:
        specs: layer name → spec, in order of layers; at least one.

    Raises:
        UnsupportedModelError: layers whose pages differ in size.
    """
    by_spec: dict[KVCacheSpec, list[str]] = {}
    for name, spec in specs.items():
        by_spec.setdefault(spec, []).append(name)
    pages = {spec.page_bytes for spec in by_spec}
    if len(pages) > 1:
        kinds = ", ".join(
            f"{len(names)} × {type(spec).__name__} of {spec.page_bytes} bytes"
            for spec, names in by_spec.items()
        )
        raise UnsupportedModelError(
            f"the model's layers keep pages of different sizes ({kinds}); "
            "one pool needs pages of one size"
        )
    counts = [len(names) for names in by_spec.values()]
    size = max(counts) if max(counts) < _ALMOST_EQUAL * min(counts) else min(counts)
    groups = []
    for spec, names in by_spec.items():
        num_groups = -(-len(names) // size)
        # Strided, so that a range of layers (a pipeline stage) holds its part of every group.
        groups += [
            KVCacheGroup(layer_names=tuple(names[i::num_groups]), spec=spec)
            for i in range(num_groups)
        ]
    return tuple(groups)
