"""How families of chat templates write reasoning and tool calls: a row each, by vLLM's names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from octavo.engine.parsers.harmony import HARMONY_MARKERS
from octavo.engine.parsers.json_calls import JsonCalls, NamedCalls
from octavo.engine.parsers.sections import PythonicCalls, Section, SectionStart
from octavo.engine.parsers.tagged_calls import TaggedCalls, TaggedFunction

SectionOf = Callable[[SectionStart], Section]
ANY = ""


@dataclass(frozen=True, kw_only=True)
class ReasoningFormat:
    """Reasoning stands between two markers. Where the prompt ends with the first one (the template
    opened it), the answer begins with reasoning.

    Attributes:
        open, close: spellings of the markers; the first ones are those of the templates.
        is_implied: the answer begins with reasoning even where the prompt does not end with a
            marker, as models do whose template should have opened it.
    """

    open: tuple[str, ...]
    close: tuple[str, ...]
    is_implied: bool = False

    def begins(self, prompt: str, prefill: str = "", *, may_imply: bool = True) -> bool:
        """Whether the answer behind this prompt, or behind this beginning of itself, goes on with
        reasoning. `may_imply`: where nobody says so, `is_implied` counts."""
        if prefill:
            opened, closed = (
                max(prefill.rfind(mark) for mark in marks) for marks in (self.open, self.close)
            )
            return opened > closed
        prompt = prompt.rstrip()
        is_implied = may_imply and self.is_implied and not prompt.endswith(self.close)
        return is_implied or prompt.endswith(self.open)


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
_tagged = partial(TaggedCalls, close="</tool_call>")
_tool_call: dict[str, SectionOf] = {
    "<": _tagged,
    ANY: partial(JsonCalls, close="</tool_call>"),
}
_llama_json = {c: partial(JsonCalls, separators=";,") for c in "{["}


def _kimi(word: str) -> dict[str, Mapping[str, SectionOf]]:
    section = partial(
        NamedCalls,
        begin="<|tool_call_begin|>",
        separator="<|tool_call_argument_begin|>",
        name=r"(?:functions\.)?(.+?)(?::\d+)?",
        ignored=("<|tool_call_end|>",),
        close=f"<|{word}_section_end|>",
    )
    return {f"<|{word}_section_begin|>": {ANY: section}}


TOOL_FORMATS: dict[str, ToolFormat] = {
    # The order is that of detection: what contains another's signs comes first.
    "qwen3_coder": ToolFormat(
        sections={
            "<tool_call>": _tool_call,
            "<function=": {ANY: partial(TaggedFunction, close="</tool_call>")},
        },
        signs=("<tool_call>", "<function="),
    ),
    "hermes": ToolFormat(
        sections={"<tool_call>": _tool_call},
        signs=("<tool_call>",),
    ),
    "seed_oss": ToolFormat(
        sections={"<seed:tool_call>": {ANY: partial(TaggedCalls, close="</seed:tool_call>")}},
        signs=("<seed:tool_call>",),
    ),
    "mistral": ToolFormat(
        sections={
            "[TOOL_CALLS]": {
                "[": JsonCalls,
                "{": JsonCalls,
                ANY: partial(_named, name=r"(.+?)\s*(?:\[CALL_ID\]\s*\w+\s*)?(?:\[ARGS\])?"),
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
        sections={**_kimi("tool_calls"), **_kimi("tool_call")},
        signs=("<|tool_calls_section_begin|>",),
    ),
    "granite": ToolFormat(
        sections={
            "<|tool_call|>": {ANY: JsonCalls},
            "<tool_call>": {ANY: partial(JsonCalls, close="</tool_call>")},
            "": {"[": JsonCalls},
        },
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
    "lfm2": ToolFormat(
        sections={
            "<|tool_call_start|>": {"[": partial(PythonicCalls, close="<|tool_call_end|>")},
        },
        signs=("<|tool_call_start|>",),
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
            "<|python_tag|>": _llama_json,
            "": _llama_json,
        },
        signs=("<|python_tag|>",),
    ),
    "pythonic": ToolFormat(sections={"": _python_list}),
}
TOOL_FORMATS["qwen3_xml"] = TOOL_FORMATS["qwen3_coder"]
TOOL_FORMATS["llama4_json"] = TOOL_FORMATS["llama3_json"]

REASONING_FORMATS: dict[str, ReasoningFormat] = {
    # The order is that of detection.
    "qwen3": ReasoningFormat(open=("<think>",), close=("</think>",)),
    "deepseek_r1": ReasoningFormat(open=("<think>",), close=("</think>",), is_implied=True),
    "granite": ReasoningFormat(
        open=("Here is my thought process:", "Here's my thought process:"),
        close=("Here is my response:", "Here's my response:"),
    ),
    "mistral": ReasoningFormat(open=("[THINK]",), close=("[/THINK]",)),
    "seed_oss": ReasoningFormat(open=("<seed:think>",), close=("</seed:think>",)),
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
        texts += [*reasoning.open, *reasoning.close]
    if tool_format is not None:
        for marker, ways in TOOL_FORMATS[tool_format].sections.items():
            texts.append(marker)
            for section_of in ways.values():
                options = section_of.keywords if isinstance(section_of, partial) else {}
                for value in options.values():
                    texts += (value,) if isinstance(value, str) else value
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
        if form.close[0] in chat_template:
            return name
    return None
