"""From the texts of an HTTP request to their vectors: one engine request each, run together."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from octavo.engine.input_processor import CheckedRequest
from octavo.engine.pooling import pooling_output
from octavo.entrypoints.openai.errors import bad_request
from octavo.entrypoints.openai.generation import cancel
from octavo.entrypoints.openai.pooling_protocol import VectorUsage
from octavo.entrypoints.openai.prepared import priority_of, request_id_of
from octavo.entrypoints.openai.truncation import kept_tokens
from octavo.errors import RequestError

if TYPE_CHECKING:
    import numpy as np

    from octavo.contracts.pooling_params import PoolingParams
    from octavo.entrypoints.openai.endpoint import Call
    from octavo.entrypoints.openai.pooling_protocol import VectorRequest
    from octavo.entrypoints.openai.state import ServedModel

MAX_INPUTS = 2048
"""Most texts of one HTTP request; OpenAI's limit."""


@dataclass
class Vectors:
    """The vectors that one HTTP request needs.

    Attributes:
        public_id: the `id` of the response.
        kept: the part of every prompt that is taken.
    """

    call: Call
    request: VectorRequest
    model: ServedModel
    params: PoolingParams
    public_id: str
    kept: slice
    created: int = field(default_factory=lambda: int(time.time()))
    _num_tokens: int = 0

    @classmethod
    def begin(
        cls,
        call: Call,
        request: VectorRequest,
        model: ServedModel,
        params: PoolingParams,
        id_prefix: str,
    ) -> Vectors:
        """Check all of a request but its texts. Raises APIError."""
        params.check_hidden_size(model.engine.info.hidden_size)
        public_id = id_prefix + request_id_of(call, request.request_id)
        kept = kept_tokens(request, room=model.max_model_len)
        return cls(call, request, model, params, public_id, kept)

    @property
    def usage(self) -> VectorUsage:
        """Of all texts so far."""
        return VectorUsage(prompt_tokens=self._num_tokens, total_tokens=self._num_tokens)

    async def of(self, prompts: Sequence[tuple[str, str | list[int]]]) -> list[np.ndarray]:
        """The vectors of texts or token ids, in order; to be called once.

        Args:
            prompts: (the request's field, the prompt) pairs.

        Raises:
            APIError, OctavoError: one of them is wrong, or failed; the others are aborted.
        """
        if len(prompts) > MAX_INPUTS:
            raise bad_request(
                f"{len(prompts)} texts; at most {MAX_INPUTS} in one request", prompts[0][0]
            )
        priority = priority_of(self.call, self.request.priority, self.model)
        requests = [await self._checked(param, prompt, priority) for param, prompt in prompts]
        ids = [self.call.server.internal_id(self.public_id) for _ in prompts]
        num_tokens = [len(request.prompt_token_ids) for request in requests]
        self.call.ticket.admit(dict(zip(ids, num_tokens)))
        self._num_tokens += sum(num_tokens)
        tasks = [
            asyncio.ensure_future(self._pooled(request, engine_id))
            for request, engine_id in zip(requests, ids)
        ]
        try:
            return list(await asyncio.gather(*tasks))
        finally:
            await cancel(tasks)

    async def _checked(self, param: str, prompt: str | list[int], priority: int) -> CheckedRequest:
        """A prompt's request."""
        engine = self.model.engine
        if isinstance(prompt, str):
            special = self.request.add_special_tokens is not False
            await engine.check_num_chars(len(prompt), param)
            prompt = await engine.tokenize(prompt, add_special_tokens=special)
        prompt = prompt[self.kept]
        if not prompt:
            raise bad_request(f"{param} has an empty text; a vector needs a token", param)
        try:
            (request,) = await engine.check(
                [prompt], [self.params], priority=priority, cache_salt=self.request.cache_salt
            )
        except RequestError as error:
            if error.param == "prompt":
                error.param = param
            raise
        assert isinstance(request, CheckedRequest)
        return request

    async def _pooled(self, request: CheckedRequest, engine_id: str) -> np.ndarray:
        outputs = self.model.engine.run(request, engine_id, service_class=self.call.service_class)
        async with aclosing(outputs):
            return pooling_output(await outputs.__anext__()).outputs.data
