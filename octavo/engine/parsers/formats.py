"""How families of chat templates write reasoning and tool calls: a row each, by vLLM's names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from octavo.engine.parsers.harmony import HARMONY_MARKERS
from octavo.engine.parsers.sections import (
    JsonCalls,
    NamedCalls,
    PythonicCalls,
    Section,
    SectionStart,
    TaggedCalls,
)

SectionOf = Callable[[SectionStart], Section]
ANY = ""


@dataclass(frozen=True, kw_only=True)
class ReasoningFormat:
    """Reasoning stands between two markers. Where the prompt ends with the first one (the template
    opened it), the answer begins with reasoning."""

    open: str
    close: str


@dataclass(frozen=True, kw_only=True)
class ToolFormat:
    """Sections of tool calls.

    Attributes:
        sections: marker → first character behind it, white space apart → the section. ANY stands
            for every character. The marker "" is the beginning of the answer: such a section begins
            unannounced, so that only names of tools count in it.
        signs: what a chat template of this family contains, all of them.
    """

    sections: Mapping[str, Mapping[str, SectionOf]]
    signs: tuple[str, ...] = ()


_named = partial(NamedCalls, separator="{")
_python_list = {"[": PythonicCalls}

TOOL_FORMATS: dict[str, ToolFormat] = {
    # The order is that of detection: what contains another's signs comes first.
    "qwen3_coder": ToolFormat(
        sections={"<tool_call>": {ANY: partial(TaggedCalls, close="</tool_call>")}},
        signs=("<tool_call>", "<function="),
    ),
    "hermes": ToolFormat(
        sections={"<tool_call>": {ANY: partial(JsonCalls, close="</tool_call>")}},
        signs=("<tool_call>",),
    ),
    "mistral": ToolFormat(
        sections={
            "[TOOL_CALLS]": {
                "[": JsonCalls,
                "{": JsonCalls,
                ANY: partial(_named, name=r"(.+?)(?:\[ARGS\])?"),
            }
        },
        signs=("[TOOL_CALLS]",),
    ),
    "deepseek_v31": ToolFormat(
        sections={
            "<｜tool▁calls▁begin｜>": {
                ANY: partial(
                    NamedCalls,
                    begin="<｜tool▁call▁begin｜>",
                    separator="<｜tool▁sep｜>",
                    ignored=("<｜tool▁call▁end｜>",),
                    close="<｜tool▁calls▁end｜>",
                )
            }
        },
        signs=("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>' + tool['function']['name']"),
    ),
    "deepseek_v3": ToolFormat(
        sections={
            "<｜tool▁calls▁begin｜>": {
                ANY: partial(
                    _named,
                    begin="<｜tool▁call▁begin｜>",
                    name=r"function<｜tool▁sep｜>(.+?)\s*```json",
                    ignored=("```<｜tool▁call▁end｜>",),
                    close="<｜tool▁calls▁end｜>",
                )
            }
        },
        signs=("<｜tool▁calls▁begin｜>",),
    ),
    "kimi_k2": ToolFormat(
        sections={
            "<|tool_calls_section_begin|>": {
                ANY: partial(
                    NamedCalls,
                    begin="<|tool_call_begin|>",
                    separator="<|tool_call_argument_begin|>",
                    name=r"(?:functions\.)?(.+?)(?::\d+)?",
                    ignored=("<|tool_call_end|>",),
                    close="<|tool_calls_section_end|>",
                )
            }
        },
        signs=("<|tool_calls_section_begin|>",),
    ),
    "granite": ToolFormat(
        sections={"<|tool_call|>": {ANY: JsonCalls}},
        signs=("<|tool_call|>",),
    ),
    "jamba": ToolFormat(
        sections={"<tool_calls>": {ANY: partial(JsonCalls, close="</tool_calls>")}},
        signs=("<tool_calls>",),
    ),
    "phi4_mini_json": ToolFormat(
        sections={"functools": {"[": JsonCalls}},
        signs=("<|tool|>", "<|/tool|>"),
    ),
    "llama4_pythonic": ToolFormat(
        sections={
            "<|python_start|>": {"[": partial(PythonicCalls, close="<|python_end|>")},
            "": _python_list,
        },
        signs=("<|python_start|>",),
    ),
    "llama3_json": ToolFormat(
        sections={
            "<|python_tag|>": {"{": partial(JsonCalls, separators=";")},
            "": {"{": partial(JsonCalls, separators=";")},
        },
        signs=("<|python_tag|>",),
    ),
    "pythonic": ToolFormat(sections={"": _python_list}),
}

REASONING_FORMATS: dict[str, ReasoningFormat] = {
    "deepseek_r1": ReasoningFormat(open="<think>", close="</think>"),
    "qwen3": ReasoningFormat(open="<think>", close="</think>"),
    "granite": ReasoningFormat(open="Here is my thought process:", close="Here is my response:"),
    "mistral": ReasoningFormat(open="[THINK]", close="[/THINK]"),
    "seed_oss": ReasoningFormat(open="<seed:think>", close="</seed:think>"),
}

HARMONY = "openai"
"""The name, among tool and reasoning parsers alike, of gpt-oss's format (`harmony`), in which both
are channels."""


def parser_names(table: Mapping[str, object]) -> list[str]:
    """Names of the formats of `TOOL_FORMATS` or `REASONING_FORMATS`, harmony's too."""
    return sorted([*table, HARMONY])


def marker_texts(tool_format: str | None, reasoning_format: str | None) -> list[str]:
    """All that marks something in these formats. A special token that occurs in one of them must
    be in the text that is parsed; all others need not."""
    if HARMONY in (tool_format, reasoning_format):
        return list(HARMONY_MARKERS)
    texts: list[str] = []
    if reasoning_format is not None:
        reasoning = REASONING_FORMATS[reasoning_format]
        texts += [reasoning.open, reasoning.close]
    if tool_format is not None:
        for marker, ways in TOOL_FORMATS[tool_format].sections.items():
            texts.append(marker)
            for section_of in ways.values():
                options = section_of.keywords if isinstance(section_of, partial) else {}
                for value in options.values():
                    texts += [value] if isinstance(value, str) else value
    return [text.replace("\\", "") for text in texts]  # names are regular expressions


def detect_tool_format(chat_template: str) -> str | None:
    """The tool format whose signs a chat template has."""
    if "<|channel|>" in chat_template:
        return HARMONY
    for name, form in TOOL_FORMATS.items():
        if form.signs and all(sign in chat_template for sign in form.signs):
            return name
    return None


def detect_reasoning_format(chat_template: str) -> str | None:
    """The reasoning format whose markers a chat template has."""
    if "<|channel|>" in chat_template:
        return HARMONY
    for name, form in REASONING_FORMATS.items():
        if form.close in chat_template:
            return name
    return None
