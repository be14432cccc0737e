"""What many families read from a Hugging Face configuration, with its limits."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from octavo.config.model import ConfigReader
from octavo.kernels.ops import HeadShape

LARGEST_SIZE = 2**31 - 1
"""Of any size in a configuration."""
_MOST_LAYERS = 4096

FULL, SLIDING = "full_attention", "sliding_attention"
"""Values of `layer_types`: a layer sees all earlier tokens, or the last `sliding_window` ones."""


def read_size(config: ConfigReader, key: str, *default: int, most: int = LARGEST_SIZE) -> int:
    """A size in 1…most. Raises UnsupportedModelError."""
    value: int = config.int(key, *default)
    if not 1 <= value <= most:
        raise config.unsupported(f"{key}={value} must be in 1…{most}")
    return value


def read_num_layers(config: ConfigReader) -> int:
    """`num_hidden_layers`. Raises UnsupportedModelError."""
    return read_size(config, "num_hidden_layers", most=_MOST_LAYERS)


def read_heads(config: ConfigReader) -> HeadShape:
    """The attention heads; without `head_dim` they share `hidden_size`.

    Raises:
        UnsupportedModelError: they do not divide evenly.
    """
    num_heads = read_size(config, "num_attention_heads")
    num_kv_heads = read_size(config, "num_key_value_heads", num_heads)
    if num_heads % num_kv_heads:
        raise config.unsupported(
            f"num_attention_heads={num_heads} must be a multiple of "
            f"num_key_value_heads={num_kv_heads}"
        )
    hidden_size = read_size(config, "hidden_size")
    if "head_dim" not in config and hidden_size % num_heads:
        raise config.unsupported(
            f"hidden_size={hidden_size} must be a multiple of num_attention_heads={num_heads}"
        )
    head_dim = read_size(config, "head_dim", max(1, hidden_size // num_heads))
    return HeadShape(num_heads=num_heads, num_kv_heads=num_kv_heads, head_dim=head_dim)


def read_layer_types(
    config: ConfigReader, is_sliding: Callable[[int], bool] | None = None
) -> tuple[str, ...]:
    """FULL or SLIDING for every layer.

    Args:
        is_sliding: decides by a layer's index where the configuration has no `layer_types`; None is
            for families in which a `sliding_window` is every layer's.

    Raises:
        UnsupportedModelError: an unknown type, or not one per layer.
    """
    num_layers = read_num_layers(config)
    if is_sliding is None:
        return (SLIDING if "sliding_window" in config else FULL,) * num_layers
    types: Sequence[object] = config.list("layer_types", ())
    if not types:
        return tuple(SLIDING if is_sliding(i) else FULL for i in range(num_layers))
    if len(types) != num_layers or any(t not in (FULL, SLIDING) for t in types):
        raise config.unsupported(
            f"layer_types must be {num_layers} entries, each {FULL!r} or {SLIDING!r}"
        )
    return tuple(map(str, types))


def read_windows(config: ConfigReader, layer_types: Sequence[str]) -> tuple[int | None, ...]:
    """The window of every layer: `sliding_window` for SLIDING, None for FULL. Raises
    UnsupportedModelError."""
    window = read_size(config, "sliding_window") if SLIDING in layer_types else None
    return tuple(window if kind == SLIDING else None for kind in layer_types)
