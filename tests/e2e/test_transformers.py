"""The default model against transformers in float32, on the same dequantised weights."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.e2e.theirs import (
    Comparison,
    assert_bfloat16_stays_near,
    assert_logprobs_are_near,
    compare,
)

pytestmark = pytest.mark.model

NUM_TOKENS = 48
PROMPTS = [
    "The capital of France is",
    "Here is the English alphabet: ABC",
    "def fibonacci(n):\n    ",
    "1, 1, 2, 3, 5, 8, 13, 21,",
    "La tour Eiffel se trouve à",
    "北京是中国的",
    "Q: What is 17 + 25?\nA:",
    '{"name": "Alice", "age": 30, "city":',
    "SELECT name FROM users WHERE",
    "Once upon a time, in a village by the sea, there lived an old fisherman who",
    "<|im_start|>user\nWhat is the capital of Italy?<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|>system\nYou are terse.<|im_end|>\n<|im_start|>user\nName three colours."
    "<|im_end|>\n<|im_start|>assistant\n",
    "Dear Sir or Madam,\n\nI am writing to",
    "🌶️ 👨‍👩‍👧‍👦 means",
    "E = mc^2 is",
    "# Shopping list\n\n- apples\n- ",
    "A",
    "\n\n",
    "To be, or not to be, that is the question: whether 'tis nobler in the mind to suffer the "
    "slings and arrows of outrageous fortune, or to take arms against a sea of troubles, and by "
    "opposing end them. To die, to sleep; no more; and by a sleep to say we end the heart-ache and "
    "the thousand natural shocks that flesh is heir to: 'tis a consummation devoutly to be wished. "
    "In modern English, this means that",
    "Water boils at 100 degrees Celsius at sea level. At an altitude of 3000 metres it boils at",
]


@pytest.fixture(scope="module")
def compared(smollm2_path: Path) -> Iterator[Comparison]:
    with compare(smollm2_path, PROMPTS, num_tokens=NUM_TOKENS, max_model_len=512) as compared:
        yield compared


def test_float32_chooses_the_same_tokens(compared: Comparison) -> None:
    """Equal ids up to the first step whose margin is under 1e-3; at most two texts end there."""
    ended = 0
    for output, there in zip(compared.ours, compared.theirs):
        ids = np.array(output.outputs[0].token_ids)
        different = np.flatnonzero(ids != there.choices)
        if len(different):
            first = different[0]
            assert there.margins[first] < 1e-3, f"{output.prompt!r} parts at step {first}"
            ended += 1
    assert ended <= 2


def test_float32_logprobs(compared: Comparison) -> None:
    assert_logprobs_are_near(compared)


def test_bfloat16_stays_near(compared: Comparison) -> None:
    assert_bfloat16_stays_near(compared, max_len=256)
