"""What transformers says of our texts, in float32, on the same dequantised weights.

It is not asked to generate: one pass over each of our texts says what it would have chosen after
every prefix of it. Where both choose the same up to a step, the texts are the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from transformers.initialization import no_init_weights

from octavo.contracts.messages import RequestOutput
from octavo.contracts.sampling_params import SamplingParams
from octavo.contracts.tensor import DType
from octavo.entrypoints.llm import LLM
from octavo.models.files import ModelFiles, resolve_model
from octavo.models.registry import build_model
from tests.kernels.backends import make_backend
from tests.models.runner import Runner

torch.set_num_threads(1)


@dataclass(frozen=True)
class Theirs:
    """What transformers says before every token of one of our texts.

    Attributes:
        logprobs: [number of tokens, vocab] float64.
        choices: [number of tokens], the likeliest id.
        margins: [number of tokens], its logit less the second's.
    """

    logprobs: np.ndarray
    choices: np.ndarray
    margins: np.ndarray


@dataclass(frozen=True)
class Comparison:
    """Our texts of some prompts, and what transformers says of each, in the same order."""

    files: ModelFiles
    ours: list[RequestOutput]
    theirs: list[Theirs]


@contextmanager
def compare(
    path: Path, prompts: Sequence[str], *, num_tokens: int, max_model_len: int
) -> Iterator[Comparison]:
    """Greedy texts of all prompts, in one batch, in float32, and theirs."""
    params = SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True, logprobs=5)
    with LLM(str(path), dtype="float32", max_model_len=max_model_len, num_threads=1) as llm:
        ours = llm.generate(prompts, params, use_tqdm=False)
    with closing(resolve_model(str(path))) as files:
        model = their_model(files)
        yield Comparison(files, ours, [ask(model, output) for output in ours])


def their_model(files: ModelFiles) -> Any:
    """transformers' model of the files' architecture, filled from our stream of weights."""
    family = getattr(transformers, files.raw_config["architectures"][0])
    values = {k: v for k, v in files.raw_config.items() if k not in ("dtype", "torch_dtype")}
    with no_init_weights():
        model = family(family.config_class(**values)).float().eval()
    weights = {name: torch.from_numpy(t.to_float32().copy()) for name, t in files.weights()}
    if model.config.tie_word_embeddings:
        weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    model.load_state_dict(weights, strict=True)
    return model


@torch.no_grad()
def ask(model: Any, output: RequestOutput) -> Theirs:
    """What `model` says of the first completion."""
    tokens = output.outputs[0].token_ids
    ids = [*output.prompt_token_ids, *tokens[:-1]]
    logits = model(torch.tensor([ids]), use_cache=False, logits_to_keep=len(tokens)).logits[0]
    top = logits.topk(2, dim=-1)
    return Theirs(
        torch.log_softmax(logits.double(), dim=-1).numpy(),
        logits.argmax(dim=-1).numpy(),
        (top.values[:, 0] - top.values[:, 1]).numpy(),
    )


def assert_logprobs_are_near(compared: Comparison) -> None:
    """Of the sampled token and the five likeliest, within 1e-3 at every step."""
    for output, there in zip(compared.ours, compared.theirs):
        rows = output.outputs[0].logprobs
        assert rows is not None
        for row, expected in zip(rows, there.logprobs, strict=True):
            for token_id, entry in row.items():
                assert abs(entry.logprob - expected[token_id]) < 1e-3, output.prompt


def assert_bfloat16_stays_near(compared: Comparison, *, max_len: int) -> None:
    """Forced along the same texts, our bfloat16: every step with a margin of 0.25 agrees, and the
    mean of KL(their float32 ‖ our bfloat16) is at most 2e-3. Without texts longer than `max_len`,
    as the runner has logits of every token."""
    runner = Runner(
        build_model(compared.files.config),
        list(compared.files.weights()),
        make_backend("cpu", DType.BF16, 1),
        max_model_len=max_len,
        max_tokens=max_len,
    )
    divergences = []
    for output, there in zip(compared.ours, compared.theirs):
        tokens = output.outputs[0].token_ids
        ids = [*output.prompt_token_ids, *tokens[:-1]]
        if len(ids) > max_len:
            continue
        runner.restart()
        x = runner.step(ids)["logits"][-len(tokens) :].astype(np.float64)
        x -= x.max(axis=-1, keepdims=True)
        logprobs = x - np.log(np.exp(x).sum(axis=-1, keepdims=True))
        clear = there.margins >= 0.25
        assert (logprobs.argmax(axis=-1) == there.choices)[clear].all(), output.prompt
        divergences.append((np.exp(there.logprobs) * (there.logprobs - logprobs)).sum(axis=-1))
    assert 0 < float(np.mean(divergences)) <= 2e-3
