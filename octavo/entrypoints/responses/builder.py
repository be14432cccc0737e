"""A response while it is made: its items, and the events that say how they grow."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from octavo.contracts.answer_events import CallBegin, Content, Event, Reasoning
from octavo.entrypoints.openai.errors import APIError
from octavo.entrypoints.openai.sse import named_event
from octavo.entrypoints.responses.protocol import (
    ArgumentsDelta,
    ArgumentsDone,
    Completed,
    Created,
    Failed,
    FunctionCallItem,
    Incomplete,
    InProgress,
    ItemAdded,
    ItemDone,
    MessageItem,
    OutputItem,
    OutputText,
    OutputTokensDetails,
    PartAdded,
    PartDone,
    Queued,
    ReasoningDelta,
    ReasoningDone,
    ReasoningItem,
    ReasoningText,
    Response,
    ResponseError,
    ResponseUsage,
    TextDelta,
    TextDone,
)
from octavo.entrypoints.responses.reasoning import carried

if TYPE_CHECKING:
    from octavo.entrypoints.openai.answers import TokenLogprob, Usage
    from octavo.entrypoints.openai.chat_output import AnswerParsing

_ENDS = {"completed": Completed, "incomplete": Incomplete, "failed": Failed, "cancelled": Failed}


class ResponseBuilder:
    """Takes what the model says, and gives the events of the stream, encoded and numbered.

    Args:
        parsing: gives calls their ids; None where the answer has none.
        carries_reasoning: reasoning items have `encrypted_content`.

    Attributes:
        response: as of now.
    """

    def __init__(
        self,
        response: Response,
        parsing: AnswerParsing | None,
        *,
        carries_reasoning: bool = False,
    ) -> None:
        self.response = response
        self._parsing = parsing
        self._carries_reasoning = carries_reasoning
        self._number = 0
        self._item: OutputItem | None = None  # the one that is open
        self._logprobs: list[TokenLogprob] = []  # not told yet

    def begin(self) -> list[bytes]:
        """The first events."""
        told = [self._event(Created, response=self.response)]
        if self.response.status == "queued":
            told.append(self._event(Queued, response=self.response))
            self.response.status = "in_progress"
        return [*told, self._event(InProgress, response=self.response)]

    def take(self, said: Iterable[Event], logprobs: Sequence[TokenLogprob] = ()) -> list[bytes]:
        """More of the answer. Log probabilities go with the next text."""
        self._logprobs += logprobs
        told: list[bytes] = []
        for event in said:
            if isinstance(event, Content):
                told += self._text(event.text)
            elif isinstance(event, Reasoning):
                told += self._reasoning(event.text)
            elif isinstance(event, CallBegin):
                told += self._call(event.name)
            else:
                assert isinstance(self._item, FunctionCallItem)
                self._item.arguments += event.text
                told.append(
                    self._event(
                        ArgumentsDelta,
                        item_id=self._item.id,
                        output_index=self._index,
                        delta=event.text,
                    )
                )
        return told

    def end(self, finish_reason: str | None, usage: Usage) -> list[bytes]:
        """The answer is over."""
        is_cut = finish_reason == "length"
        told = self._close("incomplete" if is_cut else "completed")
        self.response.usage = ResponseUsage(
            input_tokens=usage.prompt_tokens,
            input_tokens_details=usage.prompt_tokens_details,
            output_tokens=usage.completion_tokens,
            output_tokens_details=OutputTokensDetails(),
            total_tokens=usage.total_tokens,
        )
        if is_cut:
            self.response.incomplete_details = {"reason": "max_output_tokens"}
        return [*told, *self._settle("incomplete" if is_cut else "completed")]

    def fail(self, error: APIError) -> list[bytes]:
        """It ended by an error."""
        code = error.code or ("invalid_request_error" if error.status < 500 else "server_error")
        self.response.error = ResponseError(code, error.message)
        return [*self._close("incomplete"), *self._settle("failed")]

    def cancel(self) -> list[bytes]:
        """It was cancelled."""
        return [*self._close("incomplete"), *self._settle("cancelled")]

    # ---------------------------------------------------------------- items

    @property
    def _index(self) -> int:
        return len(self.response.output) - 1

    def _text(self, text: str) -> list[bytes]:
        told = []
        if not isinstance(self._item, MessageItem):
            told += self._open(MessageItem(id=_new_id("msg")), OutputText())
        assert isinstance(self._item, MessageItem)
        part = self._item.content[0]
        part.text += text
        logprobs, self._logprobs = self._logprobs, []
        part.logprobs = part.logprobs + logprobs
        told.append(
            self._event(
                TextDelta,
                item_id=self._item.id,
                output_index=self._index,
                delta=text,
                logprobs=logprobs,
            )
        )
        return told

    def _reasoning(self, text: str) -> list[bytes]:
        told = []
        if not isinstance(self._item, ReasoningItem):
            told += self._open(ReasoningItem(id=_new_id("rs")), ReasoningText())
        assert isinstance(self._item, ReasoningItem)
        self._item.content[0].text += text
        told.append(
            self._event(ReasoningDelta, item_id=self._item.id, output_index=self._index, delta=text)
        )
        return told

    def _call(self, name: str) -> list[bytes]:
        assert self._parsing is not None
        call_id = self._parsing.new_call_id("call_")
        return self._open(FunctionCallItem(id=_new_id("fc"), call_id=call_id, name=name), None)

    def _open(self, item: OutputItem, part: Any) -> list[bytes]:
        """Close the open item, and begin another, with its one part."""
        told = self._close("completed")
        self._item = item
        self.response.output.append(item)
        told.append(self._event(ItemAdded, output_index=self._index, item=item))
        if part is not None:
            told.append(
                self._event(PartAdded, item_id=item.id, output_index=self._index, part=part)
            )
            item.content = [part]  # type: ignore[union-attr]
        return told

    def _close(self, status: str) -> list[bytes]:
        item, index = self._item, self._index
        if item is None:
            return []
        self._item = None
        item.status = status
        told: list[bytes] = []
        if isinstance(item, FunctionCallItem):
            told.append(
                self._event(
                    ArgumentsDone,
                    item_id=item.id,
                    output_index=index,
                    name=item.name,
                    arguments=item.arguments,
                )
            )
        else:
            place = {"item_id": item.id, "output_index": index}
            part = item.content[0]
            if isinstance(part, OutputText):
                part.logprobs, self._logprobs = part.logprobs + self._logprobs, []
                told.append(self._event(TextDone, **place, text=part.text, logprobs=part.logprobs))
            else:
                told.append(self._event(ReasoningDone, **place, text=part.text))
                if self._carries_reasoning:
                    assert isinstance(item, ReasoningItem)
                    item.encrypted_content = carried(part.text)
            told.append(self._event(PartDone, **place, part=part))
        return [*told, self._event(ItemDone, output_index=index, item=item)]

    def _settle(self, status: str) -> list[bytes]:
        self.response.status = status
        if status == "completed":
            self.response.completed_at = int(time.time())
        return [self._event(_ENDS[status], response=self.response)]

    def _event(self, kind: Any, **fields: Any) -> bytes:
        number, self._number = self._number, self._number + 1
        return named_event(kind(sequence_number=number, **fields))


def _new_id(prefix: str) -> str:
    return f"{prefix}_{uuid4().hex}"
