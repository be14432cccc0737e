"""What the server knows of one HTTP request: who sent it, and what it used. The gate begins it, the
admission fills it in, and the log reads it at the end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from octavo.engine.metrics import FinishedSequence
    from octavo.entrypoints.openai.keys import ApiKey


@dataclass(slots=True, kw_only=True)
class RequestRecord:
    """One HTTP request.

    Attributes:
        key: whose it is; None where the server has no keys, or the route needs none.
        num_prompt_tokens: of all prompts, each once, however many completions share it.
        num_generated_tokens: of all sequences that have ended, whether they were sent or not.
    """

    request_id: str
    key: ApiKey | None = None
    num_prompt_tokens: int = 0
    num_generated_tokens: int = 0

    def take_prompt(self, num_tokens: int) -> None:
        """Its prompts are known. Raises APIError 429: its key may not use so many tokens now."""
        if self.key is not None:
            self.key.account.take_prompt(num_tokens)
        self.num_prompt_tokens += num_tokens

    def add(self, sequence: FinishedSequence) -> None:
        """One of its sequences has ended."""
        if self.key is not None:
            self.key.account.take_generated(sequence.num_generated_tokens)
        self.num_generated_tokens += sequence.num_generated_tokens
