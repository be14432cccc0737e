"""The terminal side of a chat: reading messages, showing answers. On a pipe it is plain text."""

from __future__ import annotations

import os
import re
import sys

_FENCE = '"""'
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""What a terminal may obey: everything but tab and newline."""


class Terminal:
    """Standard input and output.

    Attributes:
        is_interactive: both are terminals: prompts and notes are shown.
    """

    def __init__(self) -> None:
        self.is_interactive = sys.stdin.isatty() and sys.stdout.isatty()
        plain = "NO_COLOR" in os.environ or os.environ.get("TERM", "dumb") == "dumb"
        self._has_style = self.is_interactive and not plain
        self._column_is_zero = True
        for stream in (sys.stdin, sys.stdout):
            if hasattr(stream, "reconfigure"):
                stream.reconfigure(errors="replace")
        if self.is_interactive:
            _enable_editing()

    def read_message(self) -> str:
        """The next message, of one line or more: a line that ends with a backslash goes on, and
        three double quotes begin and end a block.

        Raises:
            EOFError: there are no more.
            KeyboardInterrupt: Ctrl-C.
        """
        line = self._read_line("> ")
        if line.lstrip().startswith(_FENCE):
            return self._read_block(line.lstrip()[len(_FENCE) :])
        lines = [line]
        while lines[-1].endswith("\\"):
            lines[-1] = lines[-1][:-1]
            try:
                lines.append(self._read_line("… "))
            except EOFError:
                break
        return "\n".join(lines)

    def write(self, text: str) -> None:
        """Show a piece of an answer."""
        if not text:
            return
        if self.is_interactive:
            text = _CONTROLS.sub("\ufffd", text)
        self._column_is_zero = text.endswith("\n")
        sys.stdout.write(text)
        sys.stdout.flush()

    def end_answer(self) -> None:
        """Leave the line of the answer."""
        if not self._column_is_zero or not self.is_interactive:
            sys.stdout.write("\n")
        self._column_is_zero = True
        sys.stdout.flush()

    def note(self, text: str) -> None:
        """Tell the user something that is no part of the chat: on stderr, if this is a pipe."""
        if self.is_interactive:
            if not self._column_is_zero:
                sys.stdout.write("\n")
            self._column_is_zero = True
            print(self._styled(text, "2"), flush=True)
        else:
            print(f"octavo: {text}", file=sys.stderr, flush=True)

    def _read_block(self, first: str) -> str:
        lines = [first]
        while not lines[-1].rstrip().endswith(_FENCE):
            try:
                lines.append(self._read_line("… "))
            except EOFError:
                return "\n".join(lines).strip("\n")
        lines[-1] = lines[-1].rstrip()[: -len(_FENCE)]
        return "\n".join(lines).strip("\n")

    def _read_line(self, prompt: str) -> str:
        if not self.is_interactive:
            line = sys.stdin.readline()
            if not line:
                raise EOFError
            return line.removesuffix("\n")
        if self._has_style:  # \1 and \2 tell readline what takes no room
            prompt = f"\1\x1b[1;36m\2{prompt}\1\x1b[0m\2"
        return input(prompt)

    def _styled(self, text: str, code: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self._has_style else text


def _enable_editing() -> None:
    """Line editing and history for `input`, where Python has them."""
    try:
        import readline
    except ImportError:
        return
    readline.set_auto_history(True)
