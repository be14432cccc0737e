"""The token budget of one step."""

from __future__ import annotations


class TokenBudget:
    """Gives out the tokens of a step.

    Args:
        num_tokens: what all requests together may be scheduled for.
        long_prefill_token_threshold: most tokens of one request, drafts apart; 0 is no limit.

    Attributes:
        remaining: not given out yet.
    """

    __slots__ = ("_threshold", "remaining")

    def __init__(self, num_tokens: int, long_prefill_token_threshold: int) -> None:
        self.remaining = num_tokens
        self._threshold = long_prefill_token_threshold or num_tokens

    def chunk(self, num_wanted: int, num_behind: int = 0) -> int:
        """How many of `num_wanted` tokens a request gets now; at least one while any remain.

        Args:
            num_behind: running requests that come after it. One token is left for each, so that a
                long prompt ahead of them does not make decoding requests skip a step.
        """
        if num_wanted == 1:
            return 1 if self.remaining else 0
        share = self.remaining - num_behind
        if share < 1:
            share = min(1, self.remaining)
        return min(num_wanted, share, self._threshold)

    def num_drafts(self, num_tokens: int, num_behind: int) -> int:
        """How many drafts fit beside the `num_tokens` tokens of the same request."""
        return max(0, self.remaining - num_tokens - num_behind)
