"""What the routes share: the served models, the queue's account, whether the server is stopping."""

from __future__ import annotations

import itertools
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from octavo.contracts.messages import ServiceClass
from octavo.engine.metrics import Histogram
from octavo.entrypoints.openai.admission import Admission
from octavo.entrypoints.openai.chat_output import OutputFormats, ToolCallCounts, output_formats
from octavo.entrypoints.openai.config import ServerConfig
from octavo.entrypoints.openai.errors import APIError
from octavo.entrypoints.openai.keys import KeyRing, configured_keys
from octavo.entrypoints.openai.streams import StreamStore
from octavo.entrypoints.openai.tokens import TokenTable
from octavo.entrypoints.responses.store import ResponseStore
from octavo.errors import shown

if TYPE_CHECKING:
    from octavo.config.engine import EngineConfig
    from octavo.contracts.beam_search_params import BeamSearchParams
    from octavo.contracts.engine_view import EngineView
    from octavo.contracts.messages import RequestOutput
    from octavo.contracts.pause_mode import PauseMode
    from octavo.contracts.pooling_params import PoolingParams
    from octavo.contracts.sampling_params import SamplingParams
    from octavo.engine.beam_search import CheckedBeamSearch
    from octavo.engine.input_processor import CheckedRequest, PromptType
    from octavo.engine.metrics import EngineMetrics, FinishedSequence
    from octavo.engine.output_processor import ParserOf
    from octavo.engine.tokenizer import Tokenizer
    from octavo.engine.wire import CoreInfo
    from octavo.entrypoints.batches.service import BatchService
    from octavo.entrypoints.openai.front_end_metrics import FrontEndMetrics
    from octavo.entrypoints.openai.tracing import Tracing
    from octavo.entrypoints.web.feed import Feed

MAX_CHOICES = 1024
"""Most completions (prompts × n) of one HTTP request."""

HTTP_SECONDS_BUCKETS = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)

MAX_BODIES = 32
"""Largest bodies that may be held at once, all requests together (256 MiB by default)."""


class EngineClient(Protocol):
    """What the server needs of `engine.async_llm.AsyncLLM`."""

    @property
    def config(self) -> EngineConfig: ...
    @property
    def info(self) -> CoreInfo: ...
    @property
    def tokenizer(self) -> Tokenizer: ...
    @property
    def metrics(self) -> EngineMetrics: ...
    def default_sampling_params(self) -> SamplingParams: ...
    async def check_num_chars(self, num_chars: int, param: str) -> None: ...
    async def check(
        self,
        prompts: Sequence[PromptType],
        params: Sequence[SamplingParams | BeamSearchParams | PoolingParams],
        *,
        priority: int = 0,
        cache_salt: str | None = None,
    ) -> list[CheckedRequest | CheckedBeamSearch]: ...
    async def check_grammar(self, request: CheckedRequest) -> None: ...
    def run(
        self,
        request: CheckedRequest,
        request_id: str,
        *,
        service_class: ServiceClass = ServiceClass.INTERACTIVE,
        parser_of: ParserOf | None = None,
    ) -> AsyncGenerator[RequestOutput, None]: ...
    async def search(
        self,
        request: CheckedBeamSearch,
        request_id: str,
        *,
        service_class: ServiceClass = ServiceClass.INTERACTIVE,
        skip_special_tokens: bool = True,
    ) -> RequestOutput: ...
    async def tokenize(self, text: str, *, add_special_tokens: bool = True) -> list[int]: ...
    async def render_chat(self, messages: list[dict[str, Any]], **options: Any) -> list[int]: ...
    async def check_health(self) -> None: ...
    @property
    def unfinished_request_ids(self) -> list[str]: ...
    async def abort(self, request_id: str) -> None: ...
    async def reset_prefix_cache(self) -> bool: ...
    async def pause_generation(
        self, *, mode: PauseMode = "abort", clear_cache: bool = True
    ) -> None: ...
    async def resume_generation(self) -> None: ...
    async def is_paused(self) -> bool: ...
    async def observe(self, after_step: int = -1, block_id: int | None = None) -> EngineView: ...
    async def shutdown(self, drain_seconds: float = 0.0) -> None: ...


class ServedModel:
    """An engine under one of its names."""

    def __init__(self, name: str, engine: EngineClient, formats: OutputFormats) -> None:
        self.name = name
        self.tool_calls = ToolCallCounts()
        self.engine = engine
        self.formats = formats
        self.tokens = TokenTable(engine.tokenizer)
        self.defaults = engine.default_sampling_params()
        self.created = int(time.time())

    @property
    def max_model_len(self) -> int:
        """Most tokens of prompt and output."""
        limit = self.engine.config.model.max_model_len
        assert limit is not None
        return limit

    @property
    def max_new_tokens(self) -> int | None:
        """Most new tokens of any request, where --override-generation-config says so."""
        override = self.engine.config.model.override_generation_config or {}
        limit = override.get("max_new_tokens")
        return None if limit is None else int(limit)


@dataclass
class Server:
    """State of one server.

    Attributes:
        models: served name → model; several names may share an engine. The first is the default.
        keys: who may use it; without any, everybody.
        in_flight: requests that were let in and have not been answered to the end.
        num_passed_on: requests that another front end answers, through this one.
        http_requests: (route, method, status) → count, for /metrics.
        responses: of /v1/responses, those that are kept.
        streams: those that outlive their connections.
        batches: files and batches; None: this server keeps none.
        batch_admission: the account of their lines: nobody is refused because of these.
        tool_calls: served name → what was found of tool calls.
        http_seconds: route → how long its requests took.
        tracing: where their traces go.
        feeds: what the dashboard shows, by the engine's identity (`id`).
        siblings: paths of the private sockets of the front ends that this one speaks for.
        front_end_metrics: what these have said; None: nobody has asked for metrics yet.
    """

    models: Mapping[str, ServedModel]
    config: ServerConfig = field(default_factory=ServerConfig)
    keys: KeyRing = field(default_factory=KeyRing)
    in_flight: int = 0
    num_passed_on: int = 0
    http_requests: dict[tuple[str, str, int], int] = field(default_factory=dict)
    responses: ResponseStore = field(default_factory=ResponseStore)
    feeds: dict[int, Feed] = field(default_factory=dict)
    siblings: Sequence[str] = ()
    front_end_metrics: FrontEndMetrics | None = None
    tracing: Tracing | None = None
    http_seconds: dict[str, Histogram] = field(default_factory=dict)

    def __post_init__(self) -> None:
        num_front_ends = self.config.api_server_count  # each has its part of the queue
        self.admission = Admission(
            max_num_queued_reqs=-(-self.config.max_num_queued_reqs // num_front_ends),
            max_num_queued_tokens=-(-self.config.max_num_queued_tokens // num_front_ends),
            max_body_bytes=MAX_BODIES * self.config.max_request_bytes,
        )
        self.batches: BatchService | None = None
        if self.config.batch_dir is not None:
            from octavo.entrypoints.batches.service import BatchService

            self.batches = BatchService(self, Path(self.config.batch_dir))
        self.batch_admission = Admission()
        self.tool_calls = {name: model.tool_calls for name, model in self.models.items()}
        self.streams = StreamStore(self.config.resume_timeout, self.keys.ledger)
        self._serial = itertools.count()
        for engine in self.engines.values():
            engine.metrics.on_started = self._started
            engine.metrics.on_finished = self._finished

    def _started(self, engine_id: str) -> None:
        self.admission.started(engine_id)
        self.batch_admission.started(engine_id)

    def _finished(self, sequence: FinishedSequence) -> None:
        self.admission.finished(sequence)
        self.batch_admission.finished(sequence)

    def model(self, name: str | None) -> ServedModel:
        """The model that a request names. Raises APIError 404."""
        if name is None:
            return next(iter(self.models.values()))
        model = self.models.get(name)
        if model is None:
            served = ", ".join(self.models)
            raise APIError(
                404,
                f"the model {shown(name)} does not exist; this server has {served}",
                param="model",
                code="model_not_found",
            )
        return model

    @property
    def is_idle(self) -> bool:
        """Is no request in progress here?"""
        return self.in_flight == 0 and self.num_passed_on == 0

    @property
    def engines(self) -> dict[str, EngineClient]:
        """Each engine once, under its first name."""
        unique: dict[int, tuple[str, EngineClient]] = {}
        for name, model in self.models.items():
            unique.setdefault(id(model.engine), (name, model.engine))
        return dict(unique.values())

    def http_seconds_of(self, route: str) -> Histogram:
        """The histogram of a route, one of finitely many."""
        histogram = self.http_seconds.get(route)
        if histogram is None:
            histogram = self.http_seconds[route] = Histogram(HTTP_SECONDS_BUCKETS)
        return histogram

    def internal_id(self, public_id: str) -> str:
        """An engine request id that no other has, however often clients send the same id."""
        return f"{public_id}-{next(self._serial):x}"


def serve_engines(
    engines: Mapping[str, EngineClient], config: ServerConfig, keys: KeyRing | None = None
) -> Server:
    """The state of a server of these names.

    Args:
        keys: who may use it; None: those of the configuration.

    Raises:
        ConfigError: as `output_formats` and `KeyRing`.
    """
    if keys is None:
        (policy,) = {engine.config.scheduler.scheduling_policy for engine in engines.values()}
        keys = configured_keys(config, policy)
    models = {
        name: ServedModel(name, engine, output_formats(config, engine))
        for name, engine in engines.items()
    }
    return Server(models, config, keys)


def serve_engine(engine: EngineClient, config: ServerConfig, keys: KeyRing | None = None) -> Server:
    """The state of a server of one engine, under its configured names. As `serve_engines`."""
    names = config.served_model_name or [engine.config.model.model]
    return serve_engines(dict.fromkeys(names, engine), config, keys)
