"""Who answers a chat: a model in this process, or a server."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

from octavo.entrypoints.cli.chat_session import Message, Piece
from octavo.entrypoints.http_client import Endpoint, HTTPError
from octavo.entrypoints.llm import LLM
from octavo.errors import ConfigError, OctavoError, PromptTooLongError, shown

_TOO_LONG = "context_length_exceeded"


class LocalBackend:
    """A model in this process.

    Raises:
        ConfigError: it has no chat template.
    """

    def __init__(self, llm: LLM) -> None:
        config = llm.llm_engine.config.model
        self._llm = llm
        self._tokenizer = llm.get_tokenizer()
        self.name = config.model
        self.max_model_len = config.max_model_len
        if not self._tokenizer.has_chat_template:
            raise ConfigError(
                f"{self.name} has no chat template; give one with --chat-template, or use "
                "`octavo generate`"
            )

    def count_tokens(self, messages: Sequence[Message]) -> int | None:
        """Tokens of the messages as a prompt."""
        return len(self._tokenizer.render_chat(messages).token_ids)

    def stream(self, messages: Sequence[Message], params: Mapping[str, Any]) -> Iterator[Piece]:
        """The answer as it comes; parameters that are not given are the model's own."""
        prompt = self._tokenizer.render_chat(messages).token_ids
        sampling = self._llm.get_default_sampling_params(**{"max_tokens": None, **params})
        with closing(self._llm.stream(prompt, sampling)) as outputs:  # type: ignore[type-var]
            for output in outputs:
                for completion in output.outputs:
                    if completion.error is not None:
                        raise OctavoError(completion.error)
                    yield Piece(completion.text, completion.finish_reason)


class RemoteBackend:
    """A server with OpenAI's API.

    Args:
        model: its name there; None is the server's first.

    Raises:
        HTTPError: the server cannot be reached.
        ConfigError: it has no such model.
    """

    def __init__(self, endpoint: Endpoint, model: str | None) -> None:
        self._endpoint = endpoint
        cards = _cards(endpoint)
        self.name = next(iter(cards)) if model is None else model
        if self.name not in cards:
            raise ConfigError(
                f"{endpoint.url} has no model {shown(self.name)}; it has {', '.join(cards)}"
            )
        length = cards[self.name].get("max_model_len")
        self.max_model_len = length if type(length) is int and length > 0 else None
        self._counts_tokens = True

    def count_tokens(self, messages: Sequence[Message]) -> int | None:
        """Tokens of the messages as a prompt, where the server has vLLM's /tokenize."""
        if not self._counts_tokens:
            return None
        body = {"model": self.name, "messages": list(messages)}
        try:
            return int(self._endpoint.post("/tokenize", body)["count"])
        except HTTPError as error:
            self._counts_tokens = error.status not in (404, 405)
        except (KeyError, TypeError, ValueError):
            self._counts_tokens = False
        return None

    def stream(self, messages: Sequence[Message], params: Mapping[str, Any]) -> Iterator[Piece]:
        """The answer as it comes; parameters that are not given are the server's choice."""
        body = {**params, "model": self.name, "messages": list(messages), "stream": True}
        try:
            with closing(self._endpoint.events("/v1/chat/completions", body)) as events:  # type: ignore[type-var]
                yield from map(_piece, events)
        except HTTPError as error:
            if error.code == _TOO_LONG:
                raise PromptTooLongError(str(error)) from error
            raise


def _cards(endpoint: Endpoint) -> dict[str, dict[str, Any]]:
    """The server's models by name."""
    try:
        cards = {str(card["id"]): card for card in endpoint.get("/v1/models")["data"]}
    except (KeyError, TypeError):
        cards = {}
    if not cards:
        raise HTTPError(f"{endpoint.url} does not say which models it has")
    return cards


def _piece(event: dict[str, Any]) -> Piece:
    try:
        choice = (event.get("choices") or [{}])[0]
        delta = choice.get("delta") or {}
        return Piece(str(delta.get("content") or ""), choice.get("finish_reason"))
    except (AttributeError, KeyError, TypeError):
        raise HTTPError(f"an event of the stream is no chat chunk: {shown(event)}") from None
