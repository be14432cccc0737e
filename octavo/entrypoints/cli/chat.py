"""`octavo chat`."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from octavo.config.engine import EngineConfig
from octavo.entrypoints.cli.fetch import fetch_model
from octavo.entrypoints.cli.options import engine_options, sampling_options
from octavo.errors import ConfigError, EngineDeadError, OctavoError, RequestError, shown

if TYPE_CHECKING:
    from octavo.entrypoints.cli.chat_session import ChatBackend, ChatSession
    from octavo.entrypoints.cli.chat_terminal import Terminal

_HELP = """\
/help           this
/system TEXT    set the system prompt; alone it is shown, "" removes it
/params A=B …   set sampling parameters (temperature=0.7 max_tokens=200); alone they are shown,
                A= takes one back to the model's own
/reset          forget the conversation; the system prompt stays
/exit           leave, as does Ctrl-D
Ctrl-C stops an answer. A line that ends with \\ goes on in the next; three double quotes begin and
end a text of many lines. A space before / makes it a text."""

_NOT_HERE = ("n", "logprobs", "prompt_logprobs", "detokenize", "output_kind")
"""Sampling parameters that make no sense in a chat."""


@engine_options
@sampling_options(without=_NOT_HERE)
def chat(
    model_name: Annotated[
        str | None, typer.Argument(metavar="MODEL", help="The model; the same as --model.")
    ] = None,
    *,
    system: Annotated[str, typer.Option(help="System prompt.")] = "",
    url: Annotated[
        str | None,
        typer.Option(help="A server with OpenAI's API to chat with, instead of a model here."),
    ] = None,
    api_key: Annotated[str | None, typer.Option(help="Key of that server.")] = None,
    sampling: dict[str, Any],
    engine: EngineConfig,
) -> None:
    """Chat with a model: in this process, or with --url on a server.

    Commands begin with a slash: /help lists them. On a pipe, each line is a message, and the
    answers alone are printed.
    """
    from octavo.entrypoints.cli.chat_session import ChatSession
    from octavo.entrypoints.cli.chat_terminal import Terminal

    _check_params(sampling)
    if model_name is not None:
        engine = replace(engine, model=replace(engine.model, model=model_name)).checked()
    open_backend = _local(engine) if url is None else _remote(url, api_key, engine)
    with open_backend as backend:
        terminal = Terminal()
        session = ChatSession(backend, system=system, params=sampling, tell=terminal.note)
        if terminal.is_interactive:
            size = f", {backend.max_model_len} tokens of context" if backend.max_model_len else ""
            terminal.note(f"{backend.name}{size}. /help lists the commands, Ctrl-D leaves.")
        _converse(session, terminal)


@contextmanager
def _local(engine: EngineConfig) -> Iterator[ChatBackend]:
    from octavo.engine.llm_engine import LLMEngine
    from octavo.entrypoints.cli.chat_backends import LocalBackend
    from octavo.entrypoints.llm import LLM

    fetch_model(engine.model)
    with LLM.from_engine(LLMEngine.from_config(engine)) as llm:
        yield LocalBackend(llm)


@contextmanager
def _remote(url: str, api_key: str | None, engine: EngineConfig) -> Iterator[ChatBackend]:
    from octavo.entrypoints.cli.chat_backends import RemoteBackend
    from octavo.entrypoints.http_client import Endpoint

    default = EngineConfig()
    name = None if engine.model.model == default.model.model else engine.model.model
    if replace(engine, model=replace(engine.model, model=default.model.model)) != default:
        raise ConfigError("options of the engine are for a model in this process: drop --url")
    yield RemoteBackend(Endpoint(url, api_key), name)


# -------------------------------------------------------------------- the conversation


class _Leave(Exception):
    """The user has had enough."""


def _converse(session: ChatSession, terminal: Terminal) -> None:
    """Until there are no more messages. On a pipe an error ends it, on a terminal it is told."""
    while True:
        try:
            text = terminal.read_message()
            _take(text, session, terminal)
        except (EOFError, _Leave) as end:
            if isinstance(end, EOFError) and terminal.is_interactive:
                terminal.end_answer()
            return
        except KeyboardInterrupt:
            if not terminal.is_interactive:
                raise
            terminal.note("\n(Ctrl-D leaves)")
        except EngineDeadError:
            raise
        except OctavoError as error:
            if not terminal.is_interactive:
                raise
            terminal.note(f"{error}")


def _take(text: str, session: ChatSession, terminal: Terminal) -> None:
    """One message or command."""
    if text.startswith("/"):
        name, _, rest = text[1:].partition(" ")
        if name not in _COMMANDS:
            raise RequestError(f"/{name} is no command; /help lists them")
        _COMMANDS[name](rest.strip(), session, terminal)
    elif text.strip():
        _answer(text.strip(), session, terminal)


def _answer(text: str, session: ChatSession, terminal: Terminal) -> None:
    pieces = session.reply(text)
    try:
        for piece in pieces:
            terminal.write(piece)
    except KeyboardInterrupt:
        if not terminal.is_interactive:
            raise
        pieces.close()  # type: ignore[attr-defined]
        terminal.note("(stopped)")
    finally:
        terminal.end_answer()


# -------------------------------------------------------------------- the commands


def _help(rest: str, session: ChatSession, terminal: Terminal) -> None:
    terminal.note(_HELP)


def _system(rest: str, session: ChatSession, terminal: Terminal) -> None:
    if rest:
        session.system = "" if rest == '""' else rest
    terminal.note(f"system prompt: {session.system}" if session.system else "no system prompt")


def _reset(rest: str, session: ChatSession, terminal: Terminal) -> None:
    session.reset()
    terminal.note("a new conversation")


def _params(rest: str, session: ChatSession, terminal: Terminal) -> None:
    params = dict(session.params)
    try:
        words = shlex.split(rest)
    except ValueError as error:  # a quote is not closed
        raise RequestError(f"{shown(rest)}: {error}") from None
    for word in words:
        name, equals, value = word.partition("=")
        if not equals:
            raise RequestError(f"{shown(word)} must be like temperature=0.7")
        params[name] = _value(value)
    params = {name: value for name, value in params.items() if value is not None}
    _check_params(params)
    session.params = params
    shown_params = " ".join(f"{name}={json.dumps(value)}" for name, value in params.items())
    terminal.note(shown_params or "all parameters are the model's own")


def _exit(rest: str, session: ChatSession, terminal: Terminal) -> None:
    raise _Leave


_COMMANDS: dict[str, Callable[[str, ChatSession, Terminal], None]] = {
    "help": _help,
    "system": _system,
    "params": _params,
    "reset": _reset,
    "exit": _exit,
}


def _value(text: str) -> Any:
    """JSON, or else a text; nothing is None."""
    try:
        return json.loads(text) if text else None
    except (ValueError, RecursionError):
        return text


def _check_params(params: dict[str, Any]) -> None:
    """Raise RequestError for a parameter that is wrong, unknown or not for a chat."""
    from octavo.contracts.sampling_params import SamplingParams

    for name in params:
        if name in _NOT_HERE or name not in SamplingParams.__struct_fields__:
            known = [f for f in SamplingParams.__struct_fields__ if f not in _NOT_HERE]
            raise RequestError(
                f"{shown(name)} is no parameter of a chat; there are {', '.join(known)}", param=name
            )
    SamplingParams(**params)
