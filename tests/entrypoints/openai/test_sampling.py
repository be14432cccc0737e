from __future__ import annotations

import pytest

from octavo.contracts.sampling_params import RequestOutputKind, SamplingParams
from octavo.entrypoints.openai.errors import APIError
from octavo.entrypoints.openai.protocol import CompletionRequest
from octavo.entrypoints.openai.sampling import sampling_params
from octavo.errors import RequestError


def params_of(request: CompletionRequest, **more: int | None) -> SamplingParams:
    options = {"max_tokens": 7, "logprobs": None, "prompt_logprobs": None, **more}
    return sampling_params(request, SamplingParams(temperature=0.5, top_k=3), **options)


def test_every_sampling_field_arrives() -> None:
    values = {
        "n": 2,
        "temperature": 0.25,
        "top_p": 0.5,
        "top_k": 9,
        "min_p": 0.125,
        "seed": 11,
        "stop": ["x"],
        "stop_token_ids": [4],
        "ignore_eos": True,
        "min_tokens": 3,
        "skip_special_tokens": False,
        "include_stop_str_in_output": True,
    }
    params = params_of(CompletionRequest(prompt="", stream=True, **values), logprobs=2)
    assert {name: getattr(params, name) for name in values} == values
    assert (params.max_tokens, params.logprobs) == (7, 2)
    assert params.output_kind is RequestOutputKind.DELTA


def test_defaults() -> None:
    params = params_of(CompletionRequest(prompt=""))
    assert params == SamplingParams(
        temperature=0.5, top_k=3, max_tokens=7, output_kind=RequestOutputKind.FINAL_ONLY
    )
    assert params_of(CompletionRequest(prompt="", logit_bias={})).logit_bias is None


@pytest.mark.parametrize("key", ["abc", "-1", "", "1.5", "²", "9" * 11])
def test_logit_bias_keys(key: str) -> None:
    with pytest.raises(APIError) as caught:
        params_of(CompletionRequest(prompt="", logit_bias={key: 1.0}))
    assert caught.value.param == "logit_bias"


def test_values_are_checked() -> None:
    with pytest.raises(RequestError, match="temperature"):
        params_of(CompletionRequest(prompt="", temperature=9))
