from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from octavo.contracts.messages import FinishReason, LogprobRows
from octavo.contracts.step import RunnerOutput
from octavo.core.request import Request
from octavo.core.update import first_rows, settle, take_sampled, unsent_prompt_rows
from tests.core.fake_worker import EOS, make_request


def in_flight(num_drafts: int = 0, **options: Any) -> Request:
    """Ten tokens of prompt, the tenth scheduled with drafts."""
    wire = make_request("r", range(1, 11), **{"max_tokens": 20, **options})
    made = Request(wire, arrival_index=0, num_groups=1, max_len=100)
    made.num_computed_tokens = 10 + num_drafts
    made.num_output_placeholders = 1 + num_drafts
    made.num_drafts_in_flight = num_drafts
    return made


def rows(*values: float) -> LogprobRows:
    column = np.array(values, np.float32)
    return LogprobRows(column[:, None].astype(np.int32), column[:, None], column.astype(np.int32))


def test_one_token() -> None:
    made = in_flight()
    assert take_sampled(made, [33], 0) == ([33], None)
    assert (made.token_ids[-1], made.output_token_ids) == (33, [33])
    assert (made.num_output_placeholders, made.num_computed_tokens) == (0, 10)
    assert made.num_wanted_tokens() == 1


@pytest.mark.parametrize("num_accepted", [0, 1, 2, 3])
def test_rejected_drafts_are_taken_back(num_accepted: int) -> None:
    made = in_flight(3)
    made.spec_token_ids = [1]  # offered meanwhile; they do not follow what is known now
    sampled = list(range(30, 31 + num_accepted))
    assert take_sampled(made, sampled, 3) == (sampled, None)
    assert made.num_computed_tokens == 10 + num_accepted == made.num_tokens - 1
    assert (made.num_output_placeholders, made.num_drafts_in_flight) == (0, 0)
    assert made.spec_token_ids == []
    assert made.num_wanted_tokens() == 1


def test_tokens_behind_the_end_are_thrown_away() -> None:
    made = in_flight(3)
    assert take_sampled(made, [30, EOS, 31], 3) == ([30, EOS], (FinishReason.STOP, None))
    assert made.output_token_ids == [30, EOS]
    made = in_flight(3, max_tokens=2)
    assert take_sampled(made, [30, 31, 32], 3) == ([30, 31], (FinishReason.LENGTH, None))


def test_more_tokens_than_can_be() -> None:
    with pytest.raises(ValueError, match="3 tokens sampled for 1 drafts"):
        take_sampled(in_flight(1), [1, 2, 3], 1)


def test_a_chunk_tells_its_user_nothing() -> None:
    made = in_flight()
    assert settle((made, 0, 0, 5, 0, False), [], None) is None


def test_logprobs_go_with_the_tokens_that_are_kept() -> None:
    made = in_flight(2)
    output = RunnerOutput(step_id=0, logprobs={"r": rows(-1, -2, -3)})
    new = settle((made, 0, 9, 3, 2, True), [30, EOS, 31], output)
    assert new is not None
    assert (new.new_token_ids, new.finish_reason) == ([30, EOS], FinishReason.STOP)
    assert new.logprobs is not None
    assert new.logprobs.logprobs.tolist() == [[-1], [-2]]
    assert first_rows(None, 2) is None


def test_prompt_logprobs_are_told_once() -> None:
    made = in_flight()
    told = []
    # Chunks 0…4 and 4…9, then a preemption, then other chunks.
    for start, values in ((0, (1, 2, 3, 4)), (0, (1, 2)), (2, (3, 4, 5, 6)), (6, (7, 8, 9))):
        new = unsent_prompt_rows(made, start, rows(*values))
        told += [] if new is None else new.logprobs[:, 0].tolist()
    assert told == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert unsent_prompt_rows(made, 0, rows(1, 2)) is None
    assert unsent_prompt_rows(made, 9, rows()) is None
    assert unsent_prompt_rows(made, 9, None) is None


def test_prompt_logprobs_come_before_the_first_token() -> None:
    made = in_flight()
    output = RunnerOutput(step_id=0, prompt_logprobs={"r": rows(-1, -2)})
    new = settle((made, 0, 0, 2, 0, False), [], output)
    assert new is not None
    assert new.new_token_ids == []
    assert new.prompt_logprobs is not None
    assert len(new.prompt_logprobs) == 2
