"""The token budget of one step."""

from __future__ import annotations

MAX_PROMPT_LOGPROBS = 1 << 17
"""Log probabilities of prompts in one step's results: 1 MB, and a tenth of a second in which the
front end makes objects of them."""


class TokenBudget:
    """Gives out the tokens of a step.

    Args:
        num_tokens: what all requests together may be scheduled for.
        long_prefill_token_threshold: most tokens of one request, drafts apart; 0 is no limit.

    Attributes:
        remaining: not given out yet.
        withheld: not to be given out in this step (`withhold_all_but`).
    """

    __slots__ = ("_num_logprobs", "_num_tokens", "_threshold", "remaining", "withheld")

    def __init__(self, num_tokens: int, long_prefill_token_threshold: int) -> None:
        self._num_tokens = self.remaining = num_tokens
        self.withheld = 0
        self._threshold = long_prefill_token_threshold or num_tokens
        self._num_logprobs = MAX_PROMPT_LOGPROBS

    @property
    def num_given(self) -> int:
        """Tokens that were given out."""
        return self._num_tokens - self.remaining - self.withheld

    def withhold_all_but(self, num_tokens: int) -> None:
        """Give out at most `num_tokens` more."""
        self.withheld += max(0, self.remaining - num_tokens)
        self.remaining = min(self.remaining, num_tokens)

    def chunk(self, num_wanted: int, num_behind: int = 0, logprobs_per_token: int = 0) -> int:
        """How many of `num_wanted` tokens a request gets now; at least one while any remain.

        Args:
            num_behind: running requests that come after it. One token is left for each, so that a
                long prompt ahead of them does not make decoding requests skip a step.
            logprobs_per_token: log probabilities that come of every token, where it is a prompt's.
                A request for whom too few are left gets one token all the same.
        """
        if num_wanted == 1:
            return 1 if self.remaining else 0
        share = self.remaining - num_behind
        if share < 1:
            share = min(1, self.remaining)
        num_tokens = min(num_wanted, share, self._threshold)
        if logprobs_per_token and num_tokens:
            num_payable = self._num_logprobs // logprobs_per_token
            num_tokens = min(num_tokens, max(1, num_payable))
            self._num_logprobs -= min(num_tokens, num_payable) * logprobs_per_token
        return num_tokens

    def num_drafts(self, num_tokens: int, num_behind: int) -> int:
        """How many drafts fit beside the `num_tokens` tokens of the same request."""
        return max(0, self.remaining - num_tokens - num_behind)
