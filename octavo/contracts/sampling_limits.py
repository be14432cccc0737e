"""How much of anything one request's `SamplingParams` may ask for."""

from __future__ import annotations

MAX_N = 128
MAX_STOP_STRINGS = 64
MAX_STOP_STRING_LENGTH = 4096
MAX_STOP_REGEXES = 16
MAX_STOP_REGEX_LENGTH = 1024
MAX_STOP_TOKEN_IDS = 1024
MAX_SHOWN_SPECIAL_TOKEN_IDS = 1024
MAX_LOGPROBS = 1024
MAX_LOGPROB_TOKEN_IDS = 128
MAX_LOGPROB_VALUES = 2**22
"""Log probabilities of one completion, and of one prompt: about 1 GB as Python objects."""
MAX_TOKEN_IDS = 2**20
"""Ids in `allowed_token_ids`, `logit_bias`, `trace_decode_token_ids`: more than any vocabulary."""
MAX_BAD_WORDS = 128
MAX_BAD_WORDS_TOKENS = 1024
MAX_BAD_WORD_LENGTH = 4096
MAX_PENALTY = 3.4e38
SEED_MIN, SEED_MAX = -(2**63), 2**64 - 1
MAX_PATTERN_SIZE = 1024
MAX_PATTERN_COUNT = 65536
MAX_LOGITS_PROCESSORS = 16
MAX_EXTRA_ARGS_BYTES = 65536
MAX_MILLISECONDS = 7 * 24 * 3600 * 1000
