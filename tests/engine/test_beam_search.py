"""Beam search: transformers' hypotheses and scores, blocks shared between beams."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo.config.sections import ModelConfig
from octavo.contracts.beam_search_params import BeamSearchParams
from octavo.contracts.messages import CompletionOutput, Logprob, RequestOutput
from octavo.contracts.step import SchedulerOutput
from octavo.engine.beam_search import BeamSearchOutput, begin_beam_search, check_beam_search
from octavo.engine.input_processor import InputProcessor
from octavo.entrypoints.llm import LLM
from octavo.errors import RequestError
from tests.e2e.lab import TINY_VOCAB, write_tiny
from tests.engine.fakes import ByteTokenizer

EOS = 256
LENGTHS = (1, 17, 33)


def prompts() -> list[list[int]]:
    rng = np.random.default_rng(5)
    return [rng.integers(0, TINY_VOCAB - 1, n).tolist() for n in LENGTHS]


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def llm(model_path: Path) -> Iterator[LLM]:
    with LLM(str(model_path), dtype="float32", max_model_len=128, num_threads=1) as llm:
        yield llm


@pytest.fixture(scope="module")
def theirs(model_path: Path) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(1)
    return AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32).eval()


def expected(
    theirs: Any, prompt: list[int], params: BeamSearchParams, eos: list[int]
) -> list[tuple[list[int], float]]:
    """(output ids, score) of transformers, the best first."""
    import torch

    found = theirs.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        num_beams=params.beam_width,
        num_return_sequences=params.beam_width,
        max_new_tokens=params.max_tokens,
        do_sample=False,
        length_penalty=params.length_penalty,
        early_stopping=params.early_stopping,
        eos_token_id=eos or 10**6,
        pad_token_id=0,
        return_dict_in_generate=True,
        output_scores=True,
    )
    lengths = (found.beam_indices >= 0).sum(dim=1).tolist()
    ids = found.sequences[:, len(prompt) :].tolist()
    return [(row[:n], s) for row, n, s in zip(ids, lengths, found.sequences_scores.tolist())]


@pytest.mark.parametrize(
    "options",
    [
        {"beam_width": 2},
        {"beam_width": 4},
        {"beam_width": 4, "early_stopping": True},
        {"beam_width": 3, "length_penalty": 0.0, "early_stopping": "never"},
        {"beam_width": 3, "length_penalty": 2.0, "early_stopping": "never"},
        {"beam_width": 5, "length_penalty": -1.0},
        {"beam_width": 4, "ignore_eos": True},
    ],
    ids=str,
)
def test_as_transformers(llm: LLM, theirs: Any, options: dict[str, Any]) -> None:
    """Many ids end a sequence, so that beams end at all lengths."""
    params = BeamSearchParams(max_tokens=20, **options)
    ends = [] if params.ignore_eos else [EOS, *range(0, 250, 9)]
    llm.llm_engine.input_processor.eos_token_ids = ends or [EOS]
    finish_reasons = set()
    for prompt, output in zip(prompts(), llm.beam_search(prompts(), params)):
        found = expected(theirs, prompt, params, ends)
        assert [s.tokens[len(prompt) :] for s in output.sequences] == [ids for ids, _ in found]
        scores = [s.score for s in output.sequences]
        np.testing.assert_allclose(scores, [score for _, score in found], rtol=2e-5)
        finish_reasons |= {s.finish_reason for s in output.sequences}
        for s in output.sequences:
            num_tokens = len(s.tokens) - len(prompt)
            own = [position[i].logprob for position, i in zip(s.logprobs, s.tokens[len(prompt) :])]
            assert len(own) == num_tokens
            assert s.cum_logprob == pytest.approx(sum(own))
            assert s.score == pytest.approx(s.cum_logprob / num_tokens**params.length_penalty)
    assert ("stop" in finish_reasons) == (not params.ignore_eos)


def texts(outputs: list[BeamSearchOutput]) -> list[list[tuple[list[int], float]]]:
    return [[(s.tokens, s.score) for s in output.sequences] for output in outputs]


@pytest.mark.parametrize(
    "options",
    [
        {"num_gpu_blocks_override": 12},
        {"pipeline_depth": 2, "max_num_batched_tokens": 16},
        {"enable_prefix_caching": False},
        {"max_num_seqs": 3},
    ],
    ids=str,
)
def test_the_schedule_does_not_show(llm: LLM, model_path: Path, options: dict[str, Any]) -> None:
    """To the bit: alone or with others, in a pool too small for all, without a prefix cache."""
    llm.llm_engine.input_processor.eos_token_ids = [EOS]
    params = BeamSearchParams(beam_width=4, max_tokens=20)
    alone = [llm.beam_search(prompt, params)[0] for prompt in prompts()]
    base = {"dtype": "float32", "max_model_len": 128, "num_threads": 1}
    with LLM(str(model_path), **{**base, **options}) as other:
        assert texts(other.beam_search(prompts(), params)) == texts(alone)
        assert other.stats().num_used_blocks == 0


def test_beams_share_blocks_and_compute_one_token_each(tmp_path: Path) -> None:
    """Of a prompt of 1000 tokens 62 blocks are full; each of 16 beams has one of its own."""
    options = {"dtype": "float32", "max_model_len": 1040, "num_threads": 1}
    path = write_tiny(tmp_path, max_position_embeddings=1040)
    with LLM(str(path), **options) as llm:
        scheduler = llm.llm_engine.client.core.scheduler  # type: ignore[attr-defined]
        steps: list[SchedulerOutput] = []
        num_used: list[int] = []
        schedule = scheduler.schedule

        def spy() -> SchedulerOutput:
            steps.append(schedule())
            num_used.append(scheduler.stats().num_used_blocks)
            return steps[-1]

        scheduler.schedule = spy
        prompt = [i % 250 for i in range(1000)]
        llm.beam_search([prompt], BeamSearchParams(beam_width=16, max_tokens=10, ignore_eos=True))
        computed = [s.total_num_scheduled_tokens for s in steps if s.num_scheduled_tokens]
        copies = [len(s.block_copies) for s in steps if s.num_scheduled_tokens]
    assert computed == [1000] + [16] * 9
    assert max(num_used[:9]) == 62 + 16
    assert copies == [0] + [16] * 8 + [0]  # until the block of tokens 992…1007 is full


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"beam_width": 0}, "beam_width=0 must be in 1…128"),
        ({"beam_width": 129}, "beam_width=129 must be in 1…128"),
        ({"beam_width": 2, "max_tokens": 0}, "max_tokens=0 must be in"),
        ({"beam_width": 2, "length_penalty": 11}, "length_penalty=11.0 must be in [-10, 10]"),
        ({"beam_width": 2, "early_stopping": "soon"}, "early_stopping='soon' must be true, false"),
        ({"beam_width": 2, "ignore_eos": 1}, "ignore_eos=1 must be true or false"),
    ],
    ids=str,
)
def test_refused(values: dict[str, Any], says: str) -> None:
    with pytest.raises(RequestError) as caught:
        BeamSearchParams(**values)
    assert says in str(caught.value)
    assert caught.value.param in values


def test_what_does_not_fit_is_refused(llm: LLM) -> None:
    with pytest.raises(RequestError, match="max_model_len=128"):
        llm.beam_search([[1] * 120], BeamSearchParams(beam_width=2, max_tokens=9))
    llm.beam_search([[1]], BeamSearchParams(beam_width=128, max_tokens=1))
    llm.llm_engine.input_processor.eos_token_ids = [EOS, 1, 2]
    with pytest.raises(RequestError, match="at most 4194304: lower one of them"):
        llm.beam_search([[1]], BeamSearchParams(beam_width=128, max_tokens=127))
    with pytest.raises(RequestError, match="must be BeamSearchParams"):
        llm.beam_search([[1]], object())  # type: ignore[arg-type]


def search_over(table: list[dict[int, float]], **options: Any) -> list[tuple[list[int], float]]:
    """A search where the log probabilities of token i + 1 depend on i alone: (output, score)."""
    processor = InputProcessor(
        ModelConfig(max_model_len=64),
        ByteTokenizer(),  # type: ignore[arg-type]
        vocab_size=259,
        hidden_size=8,
        generation_config={},
    )
    params = BeamSearchParams(max_tokens=len(table), **options)
    search = begin_beam_search(processor, "r", check_beam_search(processor, "prompt", params))
    for position in table:
        assert not search.done
        outputs = []
        for request in search.next_requests():
            logprobs = [{i: Logprob(value, 1) for i, value in position.items()}]
            completion = CompletionOutput(0, "", [0], logprobs=logprobs, finish_reason="length")
            outputs.append(RequestOutput(request.request_id, None, [], [completion], finished=True))
        search.take(outputs)
    assert search.done
    found = search.output(ByteTokenizer())  # type: ignore[arg-type]
    return [(s.tokens[len("prompt") :], s.score) for s in found.sequences]


def test_equal_scores_go_to_the_earlier_beam_and_the_lower_id() -> None:
    table = [{9: -1.0, 3: -1.0, 7: -1.0}] * 2
    expected = [([3, 3], -1.0), ([3, 7], -1.0), ([3, 9], -1.0)]
    assert search_over(table, beam_width=3) == expected
    assert search_over([dict.fromkeys((7, 3, 9), -1.0)] * 2, beam_width=3) == expected


def test_what_cannot_come_is_no_candidate() -> None:
    table = [{1: -1.0, 2: -float("inf")}, {1: -0.5, 2: -0.7}]
    found = search_over(table, beam_width=3, length_penalty=0.0)
    assert found == [([1, 1], -1.5), ([1, 2], -1.7)]
