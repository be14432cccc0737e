"""From a model's text to chat messages: reasoning, content and tool calls, whole or as deltas."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING
from uuid import uuid4

import msgspec
from msgspec import UNSET

from octavo.contracts.answer_events import CallArguments, CallBegin, Content, Event, Reasoning
from octavo.engine.chat_messages import normal_messages
from octavo.engine.parsers.forced import (
    BehindReasoning,
    NamedCallParser,
    required_calls_parser,
)
from octavo.engine.parsers.formats import (
    REASONING_FORMATS,
    ReasoningFormat,
    detect_reasoning_format,
    detect_tool_format,
    marker_texts,
)
from octavo.engine.parsers.parser import OutputParser, make_parser
from octavo.entrypoints.openai.answers import (
    ChatDelta,
    ChatMessage,
    FunctionCall,
    FunctionCallDelta,
    ToolCall,
    ToolCallDelta,
)
from octavo.entrypoints.openai.config import NO_PARSER, ServerConfig
from octavo.entrypoints.openai.structured import structured_outputs
from octavo.entrypoints.openai.tool_choice import chosen_tools, forced_name, forces_call
from octavo.errors import ConfigError, RequestError

if TYPE_CHECKING:
    from octavo.contracts.structured_outputs import StructuredOutputsParams
    from octavo.engine.output_processor import ParserOf
    from octavo.engine.tokenizer import Tokenizer
    from octavo.entrypoints.openai.protocol import ChatCompletionRequest
    from octavo.entrypoints.openai.state import EngineClient, ServedModel

_PROMPT_END = 32
"""Tokens at the prompt's end in which a template may have opened the reasoning."""
_IN_WORDS = ("choice", "regex", "grammar")
"""Kinds of structured outputs in which a request says what the text is."""
_MISTRAL_ID_LENGTH = 9  # its templates refuse others


@dataclass(frozen=True, kw_only=True)
class OutputFormats:
    """How a served model writes tool calls and reasoning; None: not looked for.

    Attributes:
        tool_ids, reasoning_ids: special tokens among their markers.
    """

    tool: str | None = None
    reasoning: str | None = None
    tool_ids: tuple[int, ...] = ()
    reasoning_ids: tuple[int, ...] = ()


def output_formats(config: ServerConfig, engine: EngineClient) -> OutputFormats:
    """The formats that the configuration names, or that the chat template shows.

    Raises:
        ConfigError: `enable_auto_tool_choice`, and there is no format of tool calls.
    """
    template = engine.tokenizer.chat_template_source
    tool, reasoning = config.tool_call_parser, config.reasoning_parser
    tool = detect_tool_format(template) if tool is None else tool
    reasoning = detect_reasoning_format(template) if reasoning is None else reasoning
    tool = None if tool == NO_PARSER else tool
    reasoning = None if reasoning == NO_PARSER else reasoning
    if config.enable_auto_tool_choice and tool is None:
        raise ConfigError(
            "enable_auto_tool_choice needs a tool_call_parser, and the chat template shows none; "
            "name one"
        )
    ids_of = partial(_special_ids, engine.tokenizer, engine.info.vocab_size)
    return OutputFormats(
        tool=tool,
        reasoning=reasoning,
        tool_ids=ids_of(marker_texts(tool, None)),
        reasoning_ids=ids_of(marker_texts(None, reasoning)),
    )


def _special_ids(tokenizer: Tokenizer, vocab_size: int, texts: Sequence[str]) -> tuple[int, ...]:
    """Special tokens of the model that occur in one of the texts."""
    ids = []
    for token_id in sorted(tokenizer.all_special_ids) if texts else ():
        spelling = tokenizer.decode([token_id], skip_special_tokens=False)
        if token_id < vocab_size and spelling and any(spelling in text for text in texts):
            ids.append(token_id)
    return tuple(ids)


@dataclass
class ToolCallCounts:
    """Of one served model, for /metrics.

    Attributes:
        parsed: answers that were searched for tool calls.
        calls: tool calls that were found.
    """

    parsed: int = 0
    calls: int = 0


@dataclass(frozen=True, kw_only=True)
class ReasoningInFront:
    """Reasoning in front of what a grammar binds.

    Attributes:
        form: how the model marks it.
        is_usual: the model's template knows these marks, and the request has not switched it off.
        words: what the request says that the text is, where it does (`_IN_WORDS`); else None.
        prefill: the answer's own beginning, where the prompt has it.
    """

    form: ReasoningFormat
    is_usual: bool
    words: str | None
    prefill: str

    @property
    def is_said(self) -> bool:
        """Whether the request's own words speak of the marks: it is their matter then."""
        words = self.words or ""
        return any(mark in words for mark in (*self.form.open, *self.form.close))

    def marks(self, prompt_end: str) -> tuple[str | None, str | None]:
        """Its marks: (None, end) if the answer begins with it, (start, end) if it may, else
        (None, None)."""
        if self.is_said:
            return None, None
        form = self.form
        if form.begins(prompt_end, self.prefill, may_imply=self.is_usual):
            return None, form.close[0]
        is_over = bool(self.prefill) or prompt_end.rstrip().endswith(form.close)
        if is_over or not self.is_usual or self.words is not None:
            return None, None
        return form.open[0], form.close[0]


@dataclass(frozen=True, kw_only=True)
class AnswerParsing:
    """How the answers of one request are taken apart.

    Attributes:
        parser_of: the end of the prompt's text → a parser of one answer.
        shown_special_token_ids: as of `SamplingParams`.
        is_named: the call is the one that the request named.
        one_call: only the first call is given.
        with_reasoning: reasoning is given.
        short_ids: ids of calls have `_MISTRAL_ID_LENGTH` characters.
        counts: what counts the calls; None: calls are not looked for.
        in_front: the reasoning that may come in front of what a grammar binds.
    """

    parser_of: Callable[[str], OutputParser]
    shown_special_token_ids: tuple[int, ...] = ()
    is_named: bool = False
    one_call: bool = False
    with_reasoning: bool = True
    short_ids: bool = False
    counts: ToolCallCounts | None = None
    in_front: ReasoningInFront | None = None

    def parser_for(self, prompt: Sequence[int], tokenizer: Tokenizer) -> ParserOf:
        """What makes the parser of an answer to this prompt."""
        return partial(self._new_parser, _end_of(prompt, tokenizer))

    def behind_reasoning(
        self, wanted: StructuredOutputsParams, prompt: Sequence[int], tokenizer: Tokenizer
    ) -> StructuredOutputsParams:
        """What the answer to this prompt must be, behind the reasoning that it may begin with."""
        if self.in_front is None or wanted.reasoning_end_str is not None:
            return wanted
        start, end = self.in_front.marks(_end_of(prompt, tokenizer))
        if end is None:
            return wanted
        return msgspec.structs.replace(wanted, reasoning_start_str=start, reasoning_end_str=end)

    def _new_parser(self, prompt_end: str) -> OutputParser:
        if self.counts is not None:
            self.counts.parsed += 1
        return self.parser_of(prompt_end)

    def wanted(self, events: Iterable[Event]) -> Iterator[Event]:
        """The events that the request wants to hear of."""
        for event in events:
            if isinstance(event, Reasoning) and not self.with_reasoning:
                continue
            if isinstance(event, (CallBegin, CallArguments)) and self.one_call and event.index > 0:
                continue
            if isinstance(event, CallBegin) and self.counts is not None:
                self.counts.calls += 1
            yield event

    def new_call_id(self, prefix: str) -> str:
        """An id for a call, with this prefix where the model's template takes any id."""
        number = uuid4().hex
        return number[:_MISTRAL_ID_LENGTH] if self.short_ids else prefix + number


def answer_parsing(request: ChatCompletionRequest, model: ServedModel) -> AnswerParsing | None:
    """How the request's answers are taken apart; None: they are content as they are. Where they are
    JSON by a grammar, only reasoning in front of it is looked for.

    Raises:
        APIError, RequestError: tools, tool_choice or a grammar are wrong.
    """
    tools = chosen_tools(request)
    formats = model.formats
    prefill = _prefill(request)
    forced = forces_call(request)
    name = forced_name(request)
    grammar = structured_outputs(request)
    is_json = grammar is not None and grammar.kind in ("json", "json_object")
    may_think = not _switches_off(request)
    in_front = None
    if grammar is not None and formats.reasoning in REASONING_FORMATS:
        form = REASONING_FORMATS[formats.reasoning]
        template = request.chat_template or model.engine.tokenizer.chat_template_source
        in_front = ReasoningInFront(
            form=form,
            is_usual=may_think and form.close[0] in template,
            words=_words_of(grammar) if grammar.kind in _IN_WORDS else None,
            prefill=prefill,
        )
    reasoning = None if is_json and in_front is None else formats.reasoning
    tool = formats.tool if tools and not is_json else None
    if not (forced or tool or reasoning):
        return None

    def parser_of(prompt: str) -> OutputParser:
        comes = in_front is None or in_front.is_said or in_front.marks(prompt)[1] is not None
        parser = make_parser(
            tool_format=tool,
            reasoning_format=reasoning,
            tools=tools,
            prompt=prompt,
            prefill=prefill,
            may_imply=comes and may_think,
            only_first=is_json,
        )
        if not forced:
            return parser
        calls = required_calls_parser(tools) if name is None else NamedCallParser(name)
        return BehindReasoning(parser, calls) if reasoning else calls

    return AnswerParsing(
        parser_of=parser_of,
        shown_special_token_ids=(formats.tool_ids if tool else ())
        + (formats.reasoning_ids if reasoning else ()),
        is_named=forced and name is not None,
        one_call=request.parallel_tool_calls is False,
        with_reasoning=request.include_reasoning is not False,
        short_ids=formats.tool == "mistral",
        counts=model.tool_calls if tool or forced else None,
        in_front=in_front,
    )


def _switches_off(request: ChatCompletionRequest) -> bool:
    """Whether the request asks for no reasoning, by the names that templates have for it."""
    options = request.chat_template_kwargs or {}
    return request.reasoning_effort == "none" or any(
        options.get(name) is False for name in ("enable_thinking", "thinking")
    )


def _prefill(request: ChatCompletionRequest) -> str:
    """The text that the answer goes on with."""
    if not request.continue_final_message:
        return ""
    try:
        (last,) = normal_messages(request.messages[-1:])
    except RequestError:  # which is said when all of them are rendered
        return ""
    content: str = last["content"]
    return content


def _words_of(wanted: StructuredOutputsParams) -> str:
    return "\n".join(wanted.choice or (wanted.regex or wanted.grammar or "",))


def _end_of(prompt: Sequence[int], tokenizer: Tokenizer) -> str:
    return tokenizer.decode(list(prompt[-_PROMPT_END:]), skip_special_tokens=False)


class ChatOutput:
    """One answer of a request, as a chat's message or the deltas of it."""

    def __init__(self, parsing: AnswerParsing) -> None:
        self._parsing = parsing
        self._num_calls = 0

    def finish_reason(self, reason: str | None) -> str | None:
        """Why it ended, as of now: of an answer that came to its end, calls are the reason. It is
        "stop" where the request named the function, as with OpenAI."""
        is_call = self._num_calls > 0 and not self._parsing.is_named
        return "tool_calls" if is_call and reason == "stop" else reason

    def delta(self, events: Iterable[Event]) -> ChatDelta | None:
        """What more events brought; None: nothing can be told yet."""
        delta = ChatDelta()
        calls: dict[int, ToolCallDelta] = {}
        for event in self._parsing.wanted(events):
            if isinstance(event, Content):
                delta.content = (delta.content or "") + event.text
            elif isinstance(event, Reasoning):
                delta.reasoning = (delta.reasoning or "") + event.text
            elif isinstance(event, CallBegin):
                self._num_calls = event.index + 1
                calls[event.index] = ToolCallDelta(
                    index=event.index,
                    id=self._parsing.new_call_id("chatcmpl-tool-"),
                    type="function",
                    function=FunctionCallDelta(name=event.name),
                )
            else:
                more = ToolCallDelta(index=event.index, function=FunctionCallDelta())
                calls.setdefault(event.index, more).function.arguments += event.text
        if calls:
            delta.tool_calls = list(calls.values())
        return None if delta == ChatDelta() else delta

    def message(self, events: Iterable[Event]) -> ChatMessage:
        """The message that a whole answer is."""
        delta = self.delta(events) or ChatDelta()
        message = ChatMessage(reasoning=delta.reasoning)
        if delta.tool_calls:
            message.tool_calls = [
                ToolCall(
                    id=c.id or "",
                    function=FunctionCall(c.function.name or "", c.function.arguments),
                )
                for c in delta.tool_calls
            ]
        if delta.content is not UNSET:
            message.content = delta.content
        elif not (delta.reasoning or delta.tool_calls):
            message.content = ""
        return message
