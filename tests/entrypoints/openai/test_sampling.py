from __future__ import annotations

import pytest

from octavo.contracts.sampling_params import RequestOutputKind, SamplingParams
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
        "presence_penalty": 0.5,
        "frequency_penalty": -0.5,
        "repetition_penalty": 1.5,
        "allowed_token_ids": [3, 4],
        "bad_words": ["x"],
        "prompt_logprobs": 2,
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


def test_logit_bias() -> None:
    assert not params_of(CompletionRequest(prompt="", logit_bias={})).logit_bias
    bias = {"5": 1.5, "0": -1000.0}
    params = params_of(CompletionRequest(prompt="", logit_bias=bias))
    assert params.logit_bias == {5: 1.5, 0: -100.0}


@pytest.mark.parametrize("key", ["abc", "-1", "", "1.5", "²", "9" * 11])
def test_logit_bias_keys(key: str) -> None:
    with pytest.raises(RequestError) as caught:
        params_of(CompletionRequest(prompt="", logit_bias={key: 1.0}))
    assert caught.value.param == "logit_bias"


@pytest.mark.parametrize(
    ("echo", "asked", "most"),
    [
        (None, None, None),
        (3, None, 3),
        (None, 2, 2),
        (3, 2, 3),
        (0, 2, 2),
        (3, -1, -1),
        (-1, 4, -1),
    ],
)
def test_prompt_logprobs_serve_echo_and_request(
    echo: int | None, asked: int | None, most: int | None
) -> None:
    request = CompletionRequest(prompt="", prompt_logprobs=asked)
    assert params_of(request, prompt_logprobs=echo).prompt_logprobs == most


def test_values_are_checked() -> None:
    with pytest.raises(RequestError, match="temperature"):
        params_of(CompletionRequest(prompt="", temperature=9))
