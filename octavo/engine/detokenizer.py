"""Tokens to text, as they come: never half a character, never text past a stop string.

Text is decided character by character, so it depends neither on where tokens cut the text nor on
how many tokens a step brings:

- Bytes of a character are withheld until it is whole. U+FFFD stands only for bytes that no
  continuation can mend; a character cut by the end of the output is left out.
- The output stops at the first character that completes a stop string, or a match of a stop regex;
  of several that end there the longest counts. What is complete within the first `min_tokens`
  tokens is text.
- What could still become one is withheld, and shown when it no longer can or at the end.
- A stop string that spells a special token is that token, too, where special tokens are no text.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec

from octavo.contracts.answer_events import Content, Event
from octavo.contracts.sampling_params import SamplingParams
from octavo.engine.parsers.parser import OutputParser
from octavo.engine.stop_regex import RegexMatcher

if TYPE_CHECKING:
    from octavo.engine.tokenizer import Tokenizer


class Piece(msgspec.Struct, frozen=True):
    """What some new tokens brought.

    Attributes:
        text: new text that nothing can take back.
        num_tokens: how many of the tokens belong to the output; fewer than were given where a stop
            string ended it.
        stop: the stop string, or regex, that ended it, or None.
        events: what a parser said of the text.
    """

    text: str
    num_tokens: int
    stop: str | None = None
    events: Sequence[Event] = ()


class Detokenizer:
    """The text of one completion.

    Args:
        tokenizer: gives the bytes of each id.
        params: `detokenize` must be true. Reads stop, stop_regex, min_tokens,
            skip_special_tokens, shown_special_token_ids and include_stop_str_in_output.
    """

    def __init__(self, tokenizer: Tokenizer, params: SamplingParams) -> None:
        self._text = _TokenText(tokenizer, params)
        self._search = _StopSearch(params)
        self._stop_tokens = _stop_tokens(tokenizer, params)
        self._keep_stop = params.include_stop_str_in_output
        self._min_tokens = params.min_tokens
        self._num_tokens = 0

    def push(
        self, token_ids: Sequence[int], *, stop_token: bool = False, finished: bool = False
    ) -> Piece:
        """Take the next tokens.

        Args:
            token_ids: new ids.
            stop_token: the last one is an end-of-sequence or stop id that ended the output. Its
                text is shown only with `include_stop_str_in_output`, and not searched.
            finished: nothing comes after these: show what is withheld.
        """
        body = token_ids[:-1] if stop_token else token_ids
        shown: list[str] = []
        if not self._search.is_needed:
            shown.append(self._text.decode(body))
        for i, token_id in enumerate(body if self._search.is_needed else ()):
            self._num_tokens += 1
            may_stop = self._num_tokens > self._min_tokens
            if may_stop and (stop := self._stop_tokens.get(token_id)) is not None:
                shown += [self._search.flush(), stop if self._keep_stop else ""]
                return Piece("".join(shown), i + 1, stop)
            text, stop = self._search.push(self._text.decode((token_id,)), may_stop=may_stop)
            shown.append(text)
            if stop is not None:
                return Piece("".join(shown), i + 1, stop)
        if finished:
            shown.append(self._search.flush())
        if stop_token and self._keep_stop:
            shown.append(self._text.decode(token_ids[-1:]))
        return Piece("".join(shown), len(token_ids))


class ParsingDetokenizer:
    """The text of one completion, taken apart by a parser: stops are searched in content alone, in
    each stretch of it. Reasoning and calls are passed on as they are.

    The token that brings a stop is the one with which the parser says that content: it withholds
    what may be a marker. A special token that is a stop ends reasoning and calls, too.
    """

    def __init__(self, tokenizer: Tokenizer, params: SamplingParams, parser: OutputParser) -> None:
        self._text = _TokenText(tokenizer, params)
        self._search = _StopSearch(params)
        self._stop_tokens = _stop_tokens(tokenizer, params)
        self._parser = parser
        self._keep_stop = params.include_stop_str_in_output
        self._min_tokens = params.min_tokens
        self._num_tokens = 0

    def push(
        self, token_ids: Sequence[int], *, stop_token: bool = False, finished: bool = False
    ) -> Piece:
        """As `Detokenizer.push`; `text` is as the model wrote it, without regard to stops."""
        body = token_ids[:-1] if stop_token and not self._keep_stop else token_ids
        texts: list[str] = []
        events: list[Event] = []
        # Without stops it does not matter where tokens end.
        groups = [(i,) for i in body] if self._search.is_needed else [body]
        for count, ids in enumerate(groups, start=1):
            self._num_tokens += len(ids)
            stop = self._stop_tokens.get(ids[-1]) if self._stop_tokens else None
            if stop is not None and self._num_tokens > self._min_tokens:
                stop = self._end(events) or stop
                return Piece("".join(texts), count, stop, events)
            texts.append(self._text.decode(ids))
            stop = self._take(self._parser.feed(texts[-1]), events)
            if stop is not None:
                return Piece("".join(texts), count, stop, events)
        stop = self._end(events) if finished else None
        return Piece("".join(texts), len(token_ids), stop, events)

    def _end(self, events: list[Event]) -> str | None:
        """Nothing comes any more: add what is withheld, up to a stop, which is returned."""
        stop = self._take(self._parser.finish(), events)
        self._flush(events)
        return stop

    def _take(self, said: Iterable[Event], events: list[Event]) -> str | None:
        """Add what the parser said, up to a stop, which is returned."""
        for event in said:
            if isinstance(event, Content):
                may_stop = self._num_tokens > self._min_tokens
                text, stop = self._search.push(event.text, may_stop=may_stop)
                if text:
                    events.append(Content(text))
                if stop is not None:
                    return stop
            else:
                self._flush(events)
                events.append(event)
        return None

    def _flush(self, events: list[Event]) -> None:
        """A stretch of content is over."""
        if held := self._search.flush():
            events.append(Content(held))


class IdsOnly:
    """The detokenizer of a request with `detokenize=False`: no text."""

    def push(
        self, token_ids: Sequence[int], *, stop_token: bool = False, finished: bool = False
    ) -> Piece:
        """All tokens count, none has text."""
        return Piece("", len(token_ids))


class DetokenizerAtEnd:
    """The text of a completion that nobody sees before its end, and that no text ends: it is made
    of all tokens at once."""

    def __init__(self, tokenizer: Tokenizer, params: SamplingParams) -> None:
        self._detokenizer = Detokenizer(tokenizer, params)
        self._token_ids: list[int] = []

    def push(
        self, token_ids: Sequence[int], *, stop_token: bool = False, finished: bool = False
    ) -> Piece:
        """As `Detokenizer.push`; the last piece has all the text."""
        self._token_ids += token_ids
        text = ""
        if finished:
            text = self._detokenizer.push(self._token_ids, stop_token=stop_token).text
        return Piece(text, len(token_ids))


def make_detokenizer(
    tokenizer: Tokenizer,
    params: SamplingParams,
    parser: OutputParser | None = None,
    *,
    is_shown_at_end: bool = False,
) -> Detokenizer | ParsingDetokenizer | DetokenizerAtEnd | IdsOnly:
    """The detokenizer that `params` asks for, with a parser if there is one.

    Args:
        is_shown_at_end: nobody sees the text before.
    """
    if not params.detokenize:
        return IdsOnly()
    if parser is not None:
        return ParsingDetokenizer(tokenizer, params, parser)
    if is_shown_at_end and not (params.stop_strings or params.stop_regexes):
        return DetokenizerAtEnd(tokenizer, params)
    return Detokenizer(tokenizer, params)


def _stop_tokens(tokenizer: Tokenizer, params: SamplingParams) -> dict[int, str]:
    """Special tokens that stop strings spell and that are no text: id → stop string."""
    if not params.skip_special_tokens or not params.stop_strings:
        return {}
    spellings, shown = tokenizer.special_spellings, params.shown_special_token_ids or ()
    ids = {spellings[stop]: stop for stop in params.stop_strings if stop in spellings}
    return {i: stop for i, stop in ids.items() if i not in shown}


class _TokenText:
    """Ids to text, whole characters at a time."""

    def __init__(self, tokenizer: Tokenizer, params: SamplingParams) -> None:
        self._token_bytes = tokenizer.token_bytes
        self._hidden: frozenset[int] = frozenset()
        if params.skip_special_tokens:
            shown = params.shown_special_token_ids or ()
            self._hidden = tokenizer.all_special_ids.difference(shown)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def decode(self, token_ids: Sequence[int]) -> str:
        token_bytes, hidden = self._token_bytes, self._hidden
        data = b"".join([token_bytes(i) for i in token_ids if i not in hidden])
        return self._decoder.decode(data)


class _StopSearch:
    """Stop strings and regexes in text that comes in pieces.

    Attributes:
        is_needed: there are any.
    """

    def __init__(self, params: SamplingParams) -> None:
        self._strings = list(dict.fromkeys(params.stop_strings))
        self._regexes = list(dict.fromkeys(params.stop_regexes))
        self._keep_stop = params.include_stop_str_in_output
        self._held = ""  # the longest end of the text that may become part of a stop
        self._is_fresh = True
        self._matchers = self._new_matchers()
        self.is_needed = bool(self._matchers)

    def push(self, text: str, *, may_stop: bool) -> tuple[str, str | None]:
        """What of the text so far can be shown now, and the stop that ends it."""
        if not self.is_needed:
            return text, None
        self._is_fresh = False
        end, length, stop = self._find_stop(text, may_stop=may_stop)
        self._held += text[:end]
        keep = max(matcher.num_held for matcher in self._matchers)
        if stop is not None:
            keep = 0 if self._keep_stop else length
        cut = len(self._held) - keep
        shown, self._held = self._held[:cut], "" if stop is not None else self._held[cut:]
        return shown, stop

    def flush(self) -> str:
        """The text is over: what was withheld. Another may begin."""
        held, self._held = self._held, ""
        if not self._is_fresh:
            self._matchers, self._is_fresh = self._new_matchers(), True
        return held

    def _new_matchers(self) -> list[_StopMatcher | RegexMatcher]:
        return [*map(_StopMatcher, self._strings), *map(RegexMatcher, self._regexes)]

    def _find_stop(self, text: str, *, may_stop: bool) -> tuple[int, int, str | None]:
        """Advance all matchers over `text`: where the first stop ends, its length, and which it
        is."""
        first, longest, found = len(text), 0, None
        for matcher in self._matchers:
            position = 0
            while (match := matcher.advance(text, position)) is not None:
                end, length = match
                if may_stop:
                    if end < first or (end == first and length > longest):
                        first, longest, found = end, length, matcher.name
                    break
                position = end
        return first, longest, found


class _StopMatcher:
    """Knuth-Morris-Pratt over text that comes in pieces: time is linear in the text, whatever the
    stop string. The failure table grows only as far as a match has ever come.

    Attributes:
        name: the stop string.
        num_held: length of the longest end of the text that it begins with.
    """

    __slots__ = ("_failure", "name", "num_held")

    def __init__(self, needle: str) -> None:
        self.name = needle
        self.num_held = 0
        self._failure = [0, 0]  # of the prefixes of length 0, 1, …: longest proper border

    def advance(self, text: str, start: int) -> tuple[int, int] | None:
        """Read `text` from `start`. Returns the index after the first full match and the length of
        the match, or None."""
        needle, matched, i = self.name, self.num_held, start
        while i < len(text):
            if matched == 0:
                i = text.find(needle[0], i)
                if i < 0:
                    break
                matched = 1
            else:
                while matched and needle[matched] != text[i]:
                    matched = self._border(matched)
                if needle[matched] == text[i]:
                    matched += 1
            i += 1
            if matched == len(needle):
                self.num_held = self._border(matched)
                return i, matched
        self.num_held = matched
        return None

    def _border(self, length: int) -> int:
        """Length of the longest proper prefix of needle[:length] that also ends it."""
        failure, needle = self._failure, self.name
        while len(failure) <= length:
            k, c = failure[-1], needle[len(failure) - 1]
            while k and needle[k] != c:
                k = failure[k]
            failure.append(k + 1 if needle[k] == c else 0)
        return failure[length]
