"""FlatLogprobs is the list that it stands for."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from octavo.contracts.logprobs import FlatLogprobs, Logprob

ENTRIES = st.builds(
    Logprob,
    st.floats(-100, 0),
    st.one_of(st.none(), st.integers(1, 10**6)),
    st.one_of(st.none(), st.text(max_size=2)),
)
POSITIONS = st.lists(
    st.one_of(st.none(), st.dictionaries(st.integers(0, 10**6), ENTRIES, max_size=3)), max_size=8
)


@given(POSITIONS, POSITIONS, st.slices(8))
def test_reads_as_a_list(
    positions: list[dict[int, Logprob] | None], more: list[dict[int, Logprob] | None], part: slice
) -> None:
    flat = FlatLogprobs(positions)
    assert len(flat) == len(positions)
    assert flat == positions
    assert [list(p or ()) for p in flat] == [list(p or ()) for p in positions]
    for i in range(-len(positions), len(positions)):
        assert flat[i] == positions[i]
    assert flat[part] == positions[part]
    assert flat + more == positions + more
    flat += more
    assert flat == positions + more
    assert len(flat.token_ids) == len(flat.logprobs) == len(flat.decoded_tokens)
