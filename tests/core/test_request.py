from __future__ import annotations

from typing import Any

import pytest

from octavo.contracts.features import HookRequest
from octavo.contracts.messages import EngineRequest, FinishReason
from octavo.contracts.pooling_params import PoolingParams
from octavo.core.request import Request, RequestStatus, check_request
from octavo.errors import PromptTooLongError, RequestError
from tests.core.fake_worker import EOS, make_request


def request(prompt: int = 10, max_len: int = 100, **options: Any) -> Request:
    wire = make_request("r", range(1, prompt + 1), **options)
    return Request(wire, arrival_index=3, num_groups=2, max_len=max_len)


def test_it_is_what_hooks_read() -> None:
    view: HookRequest = request(10)
    assert view.request_id == view.engine_request.request_id == "r"
    assert (view.num_tokens, view.num_prompt_tokens, view.num_computed_tokens) == (10, 10, 0)
    assert list(view.output_token_ids) == []


def test_it_does_not_share_the_wires_list() -> None:
    made = request()
    made.token_ids.append(1)
    assert len(made.engine_request.prompt_token_ids) == 10


def test_a_prompt_in_chunks_then_tokens_in_flight() -> None:
    made = request(10, max_tokens=3)
    assert made.num_wanted_tokens() == 10
    made.num_computed_tokens = made.num_in_flight_tokens = 4
    assert (made.num_wanted_tokens(), made.num_processed_tokens) == (6, 0)
    made.num_computed_tokens, made.num_output_placeholders = 10, 1
    assert made.num_wanted_tokens() == 1
    made.num_computed_tokens, made.num_output_placeholders = 11, 2
    assert made.num_wanted_tokens() == 1
    # The third and last token is in flight: nothing is wanted beyond it.
    made.num_computed_tokens, made.num_output_placeholders = 12, 3
    assert made.num_wanted_tokens() == 0


def test_it_rests_while_drafts_are_verified() -> None:
    made = request(10, max_tokens=50)
    made.num_computed_tokens, made.num_output_placeholders = 13, 4
    assert made.num_wanted_tokens() == 1
    made.num_drafts_in_flight = 3
    assert made.num_wanted_tokens() == 0


def test_usable_drafts() -> None:
    made = request(10, max_tokens=4)
    assert made.usable_drafts() == []
    made.spec_token_ids = [1, 2, 3, 4, 5]
    assert made.num_tokens_with_spec == 15
    assert made.usable_drafts() == [1, 2, 3]  # and one more is sampled
    made.token_ids += [7, 7, 7]
    assert made.usable_drafts() == []
    made.token_ids = made.token_ids[:10]
    made.num_output_placeholders = 1  # they follow tokens that are not known
    assert made.usable_drafts() == []


def test_forgetting_progress_keeps_tokens() -> None:
    made = request(10)
    made.token_ids.append(5)
    made.num_computed_tokens, made.num_in_flight_tokens = 11, 3
    made.num_output_placeholders, made.num_drafts_in_flight = 2, 1
    made.spec_token_ids, made.is_sharing = [1], True
    made.forget_progress()
    assert made.num_wanted_tokens() == 11
    assert (made.epoch, made.num_tokens_with_spec, made.is_sharing) == (1, 11, False)


@pytest.mark.parametrize(
    ("options", "token_id", "num_output", "ending"),
    [
        ({}, EOS, 1, (FinishReason.STOP, None)),
        ({"ignore_eos": True}, EOS, 1, None),
        ({"stop_token_ids": [EOS]}, EOS, 1, (FinishReason.STOP, None)),  # EOS comes first
        ({"ignore_eos": True, "stop_token_ids": [EOS]}, EOS, 1, (FinishReason.STOP, EOS)),
        ({"stop_token_ids": [9]}, 9, 1, (FinishReason.STOP, 9)),
        ({"stop_token_ids": [9]}, 9, 4, (FinishReason.STOP, 9)),  # before the length
        ({}, 8, 4, (FinishReason.LENGTH, None)),
        ({}, EOS, 4, (FinishReason.STOP, None)),
        ({}, 8, 3, None),
        ({"max_tokens": None}, 8, 89, None),
        ({"max_tokens": None}, 8, 90, (FinishReason.LENGTH, None)),  # max_len
        ({"max_tokens": 500}, 8, 90, (FinishReason.LENGTH, None)),
    ],
)
def test_endings_in_their_order(
    options: dict[str, Any], token_id: int, num_output: int, ending: object
) -> None:
    made = request(10, **{"max_tokens": 4, **options})
    made.token_ids += [8] * (num_output - 1)
    assert made.append_output(token_id) == ending
    assert (made.token_ids[-1], made.output_token_ids) == (token_id, [token_id])


def test_states() -> None:
    made = request()
    assert made.status is RequestStatus.WAITING
    assert not made.is_finished
    assert "'r', waiting, 10 tokens, 0 computed" in repr(made)
    assert request(prompt_logprobs=0).skips_prefix_cache
    assert not made.skips_prefix_cache


class TestRefusals:
    def test_too_long_for_the_model(self) -> None:
        check_request(make_request("r", [1] * 63), 64, 64)
        with pytest.raises(PromptTooLongError, match=r"64 tokens; max_model_len=64.*most 63"):
            check_request(make_request("r", [1] * 64), 64, 64)

    def test_too_long_for_the_pool(self) -> None:
        check_request(make_request("r", [1] * 47), 100, 48)
        with pytest.raises(RequestError, match=r"64 tokens; the KV cache.*at most 47"):
            check_request(make_request("r", [1] * 64), 100, 48)

    @pytest.mark.parametrize(
        ("prompt", "why"),
        [
            ([], "is empty"),
            ([-1], "token id -1 must be in 0…2147483647"),
            ([1, 5279552648203111001], "token id 5279552648203111001 must"),
            ([2**31], "token id 2147483648"),
        ],
    )
    def test_prompts(self, prompt: list[int], why: str) -> None:
        with pytest.raises(RequestError, match=why) as error:
            check_request(make_request("r", prompt), 100, 100)
        assert error.value.param == "prompt"

    def test_pooling_needs_no_room_for_a_token(self) -> None:
        def pooling(length: int) -> EngineRequest:
            return EngineRequest(
                request_id="r",
                prompt_token_ids=[1] * length,
                pooling_params=PoolingParams(pooling_type="MEAN"),
            )

        check_request(pooling(64), 64, 64)
        for limits in ((63, 64), (64, 63)):
            with pytest.raises(RequestError, match="at most 63"):
                check_request(pooling(64), *limits)

    @pytest.mark.parametrize(("kind", "skips"), [("LAST", False), ("MEAN", True), ("CLS", True)])
    def test_pooling_reads_the_prefix_cache_for_the_last_token_alone(
        self, kind: Any, skips: bool
    ) -> None:
        wire = EngineRequest(
            request_id="r",
            prompt_token_ids=[1] * 40,
            pooling_params=PoolingParams(pooling_type=kind),
        )
        made = Request(wire, arrival_index=0, num_groups=1, max_len=64)
        assert made.is_pooling
        assert made.skips_prefix_cache is skips

    def test_parameters_of_neither_kind_or_both(self) -> None:
        for sampling, pooling in (
            (None, None),
            (make_request("r", [1]).sampling_params, PoolingParams()),
        ):
            wire = EngineRequest(
                request_id="r",
                prompt_token_ids=[1],
                sampling_params=sampling,
                pooling_params=pooling,
            )
            with pytest.raises(RequestError, match="either sampling_params or pooling_params"):
                check_request(wire, 100, 100)
