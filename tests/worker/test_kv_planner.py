from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.contracts.kv_spec import FullAttentionSpec, KVCacheConfig, MambaSpec, SlidingWindowSpec
from octavo.contracts.tensor import DType
from octavo.errors import UnsupportedModelError
from octavo.worker.kv_planner import group_layers

HEADS = {"num_kv_heads": 2, "head_size": 8, "head_size_v": 8, "dtype": DType.F32}
FULL = FullAttentionSpec(**HEADS)
SLIDING = SlidingWindowSpec(**HEADS, sliding_window=32)
WIDER = SlidingWindowSpec(**HEADS, sliding_window=64)


def named(*specs):
    return {f"layer.{i}": spec for i, spec in enumerate(specs)}


def test_one_spec_is_one_group() -> None:
    groups = group_layers(named(FULL, FULL, FULL))
    assert [g.layer_names for g in groups] == [("layer.0", "layer.1", "layer.2")]
    assert groups[0].spec == FULL


def test_hybrid_models_split_into_groups_of_the_smallest_number_of_layers() -> None:
    """Gemma 3 (270m): five sliding layers to each full one."""
    groups = group_layers(named(*([SLIDING] * 5 + [FULL]) * 3))
    assert [len(g.layer_names) for g in groups] == [3] * 6
    assert [g.spec for g in groups] == [SLIDING] * 5 + [FULL]
    assert groups[5].layer_names == ("layer.5", "layer.11", "layer.17")
    assert groups[0].layer_names == ("layer.0", "layer.6", "layer.12")


def test_a_number_that_does_not_divide_leaves_short_groups() -> None:
    groups = group_layers(named(*[SLIDING] * 22, *[FULL] * 4))
    assert [len(g.layer_names) for g in groups] == [4, 4, 4, 4, 3, 3, 4]
    config = KVCacheConfig(num_blocks=10, groups=groups)
    assert config.num_tensors == 4
    assert config.block_bytes == 4 * FULL.page_bytes


def test_almost_equal_numbers_are_padded_not_split() -> None:
    groups = group_layers(named(*[SLIDING] * 13, *[FULL] * 12))
    assert [len(g.layer_names) for g in groups] == [13, 12]


@given(st.lists(st.sampled_from([FULL, SLIDING, WIDER]), min_size=1, max_size=40))
def test_groups_hold_every_layer_once_with_its_spec(specs) -> None:
    groups = group_layers(named(*specs))
    placed = {name: g.spec for g in groups for name in g.layer_names}
    assert placed == named(*specs)
    assert sum(len(g.layer_names) for g in groups) == len(specs)
    size = KVCacheConfig(num_blocks=1, groups=groups).num_tensors
    padding = size * len(groups) - len(specs)
    assert padding < len(specs), "less than half of the pool is padding"


def test_pages_of_different_sizes_are_refused() -> None:
    with pytest.raises(UnsupportedModelError) as error:
        group_layers(named(FULL, FULL, MambaSpec(state_bytes=77)))
    assert str(error.value) == (
        "the model's layers keep pages of different sizes (2 × FullAttentionSpec of 2048 bytes, "
        "1 × MambaSpec of 77 bytes); one pool needs pages of one size"
    )
