"""What transformers says of our texts, in float32, on the same dequantised weights.

It is not asked to generate: one pass over each of our texts says what it would have chosen after
every prefix of it. Where both choose the same up to a step, the texts are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import transformers
from transformers.initialization import no_init_weights

from octavo.contracts.messages import RequestOutput
from octavo.contracts.tensor import DType
from octavo.models.files import ModelFiles
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


def worst_logprob(output: RequestOutput, theirs: Theirs) -> float:
    """The largest difference of a log probability in the first completion."""
    rows = output.outputs[0].logprobs
    assert rows is not None
    assert len(rows) == len(theirs.logprobs)
    return max(
        abs(entry.logprob - expected[i])
        for row, expected in zip(rows, theirs.logprobs)
        for i, entry in row.items()
    )


def assert_bfloat16_stays_near(
    files: ModelFiles, outputs: Sequence[RequestOutput], theirs: Sequence[Theirs], *, max_len: int
) -> None:
    """Forced along the same texts, our bfloat16: every step with a margin of 0.25 agrees, and the
    mean of KL(their float32 ‖ our bfloat16) is at most 2e-3."""
    runner = Runner(
        build_model(files.config),
        list(files.weights()),
        make_backend("cpu", DType.BF16, 1),
        max_model_len=max_len,
        max_tokens=max_len,
    )
    divergences = []
    for output, there in zip(outputs, theirs):
        runner.restart()
        tokens = output.outputs[0].token_ids
        ids = [*output.prompt_token_ids, *tokens[:-1]]
        x = runner.step(ids)["logits"][-len(tokens) :].astype(np.float64)
        x -= x.max(axis=-1, keepdims=True)
        logprobs = x - np.log(np.exp(x).sum(axis=-1, keepdims=True))
        clear = there.margins >= 0.25
        assert (logprobs.argmax(axis=-1) == there.choices)[clear].all(), output.prompt
        divergences.append((np.exp(there.logprobs) * (there.logprobs - logprobs)).sum(axis=-1))
    assert 0 < float(np.mean(divergences)) <= 2e-3
