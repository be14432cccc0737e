"""`octavo chat`: the conversation, its backends, and the program on a terminal and on a pipe."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from octavo.entrypoints.cli.chat_backends import LocalBackend, RemoteBackend
from octavo.entrypoints.cli.chat_session import ChatSession, Message, Piece
from octavo.entrypoints.http_client import Endpoint, HTTPError
from octavo.entrypoints.llm import LLM
from octavo.errors import ConfigError, OctavoError, PromptTooLongError
from tests.entrypoints.cli.command import Command
from tests.entrypoints.cli.pty_program import CTRL_C, CTRL_D, ROOT, PtyProgram
from tests.entrypoints.web_server import Request, WebServer, event_stream, json_answer, web_server
from tests.tiny_model import write_tiny_llama


class Parrot:
    """Answers with the number of messages and the last one, a word per piece; a word of a message
    is a token."""

    name = "parrot"

    def __init__(self, max_model_len: int | None = None, *, counts: bool = True) -> None:
        self.max_model_len = max_model_len
        self.counts = counts
        self.asked: list[list[Message]] = []
        self.params: Mapping[str, Any] = {}
        self.left_early = False

    def count_tokens(self, messages: Sequence[Message]) -> int | None:
        return self._count(messages) if self.counts else None

    def stream(self, messages: Sequence[Message], params: Mapping[str, Any]) -> Iterator[Piece]:
        if self.max_model_len is not None and self._count(messages) >= self.max_model_len:
            raise PromptTooLongError("too long")
        self.asked.append([dict(m) for m in messages])
        self.params = dict(params)
        words = messages[-1]["content"].split()
        if words[0] == "fail":
            raise OctavoError("failed")
        self.left_early = True
        yield Piece(f"{len(messages)}:")
        for word in words:
            yield Piece(f" {word}")
        self.left_early = False
        yield Piece("", "length" if words[0] == "long" else "stop")

    def _count(self, messages: Sequence[Message]) -> int:
        return sum(len(m["content"].split()) for m in messages)


class Talk:
    """A session and what it told."""

    def __init__(self, backend: Parrot, **options: Any) -> None:
        self.told: list[str] = []
        self.backend = backend
        options = {"params": {}, **options}
        self.session = ChatSession(backend, tell=self.told.append, **options)

    def say(self, text: str) -> str:
        return "".join(self.session.reply(text))


class TestSession:
    def test_turns_are_kept(self) -> None:
        talk = Talk(Parrot(), system="be brief", params={"top_k": 1})
        assert talk.say("one two") == "2: one two"
        assert talk.say("three") == "4: three"
        assert [m["role"] for m in talk.session.messages] == [
            *("system", "user", "assistant", "user", "assistant")
        ]
        assert talk.session.messages[2]["content"] == "2: one two"
        assert talk.backend.params == {"top_k": 1}
        talk.session.reset()
        assert talk.session.messages == [{"role": "system", "content": "be brief"}]
        talk.session.system = ""
        assert talk.say("four") == "1: four"
        assert talk.told == []

    def test_an_answer_that_is_stopped_stays_as_far_as_it_came(self) -> None:
        talk = Talk(Parrot())
        pieces = talk.session.reply("one two three")
        assert [next(pieces), next(pieces)] == ["1:", " one"]
        pieces.close()  # type: ignore[attr-defined]
        assert talk.backend.left_early
        assert talk.session.messages[-1] == {"role": "assistant", "content": "1: one"}
        assert talk.say("go on") == "3: go on"

    def test_a_failure_changes_nothing(self) -> None:
        talk = Talk(Parrot())
        talk.say("one")
        with pytest.raises(OctavoError, match="failed"):
            talk.say("fail")
        assert len(talk.session.messages) == 2
        assert talk.say("two") == "3: two"

    def test_why_it_was_cut(self) -> None:
        talk = Talk(Parrot(1000))
        talk.say("long")
        talk.session.params = {"max_tokens": 5}
        talk.say("long")
        assert talk.told == [
            "cut: the context of 1000 tokens is full; /reset starts anew",
            "cut after max_tokens=5; /params max_tokens=… changes it",
        ]

    @pytest.mark.parametrize("counts", [True, False])
    def test_the_oldest_turns_go_when_the_context_is_full(self, counts: bool) -> None:
        talk = Talk(Parrot(20, counts=counts), system="s y s")
        for i in range(6):
            talk.say(f"{i} b c")
            assert talk.session.messages[0]["content"] == "s y s"
            assert talk.backend.asked[-1][-1]["content"] == f"{i} b c"
            assert talk.backend.asked[-1][1]["role"] == "user"
        assert talk.told[0] == (
            "the context of 20 tokens is full: the model no longer sees the oldest turn; "
            "/reset starts anew"
        )
        turns = [m for m in talk.session.messages if m["role"] == "user"]
        assert len(talk.told) == 6 - len(turns) > 0

    def test_many_turns_go_for_a_long_message(self) -> None:
        talk = Talk(Parrot(40))
        for _ in range(3):
            talk.say("a b")
        talk.say("w " * 25)
        assert "the oldest 2 turns" in talk.told[0]

    def test_room_is_kept_for_the_answer(self) -> None:
        """With counts, turns go before the context is full to the last token."""
        talk = Talk(Parrot(40), params={"max_tokens": 8})
        talk.say("a " * 12)
        talk.say("b " * 9)  # 12 + 13 + 9 + 8 > 40
        (told,) = talk.told
        assert "no longer sees the oldest turn;" in told

    def test_one_message_that_is_too_long(self) -> None:
        talk = Talk(Parrot(20))
        talk.say("a")
        with pytest.raises(PromptTooLongError):
            talk.say("w " * 30)
        assert talk.say("b") == "1: b"


# -------------------------------------------------------------------- backends


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model whose context is long, so that its answers take a while."""
    folder = write_tiny_llama(tmp_path_factory.mktemp("tiny"))
    path = folder / "config.json"
    changes = {"max_position_embeddings": 200_000}
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return folder


class TestLocal:
    def test_answers_are_the_library_s(self, tiny: Path) -> None:
        messages = [{"role": "user", "content": "hello"}]
        params = {"temperature": 0, "max_tokens": 12, "ignore_eos": True}
        with LLM(str(tiny), max_model_len=300) as llm:
            backend = LocalBackend(llm)
            assert backend.max_model_len == 300
            assert backend.count_tokens(messages) == len("user: hello\nassistant: ")
            pieces = list(backend.stream(messages, params))
            sampling = llm.get_default_sampling_params(**params)
            (expected,) = llm.chat(messages, sampling, use_tqdm=False)
            assert "".join(p.text for p in pieces) == expected.outputs[0].text
            assert pieces[-1].finish_reason == "length"
            with pytest.raises(PromptTooLongError):
                next(backend.stream([{"role": "user", "content": "x" * 300}], params))
            with closing(backend.stream(messages, {"ignore_eos": True})) as endless:  # type: ignore[type-var]
                next(endless)
            assert llm.stats().num_running == 0

    def test_a_model_without_a_template(self, tmp_path: Path) -> None:
        write_tiny_llama(tmp_path)
        (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "<end>"}')
        with LLM(str(tmp_path)) as llm, pytest.raises(ConfigError, match="no chat template"):
            LocalBackend(llm)


def chunk(text: str, reason: str | None = None) -> dict[str, Any]:
    return {"choices": [{"delta": {"content": text}, "finish_reason": reason}]}


def chat_server(request: Request) -> Any:
    """Says what it was told last; "wait" makes it wait after the first word."""
    if request.path == "/v1/models":
        return json_answer({"data": [{"id": "m", "max_model_len": 50}, {"id": "n"}]})
    if request.path == "/tokenize":
        return json_answer({"count": 7})
    assert request.json["stream"]
    text = request.json["messages"][-1]["content"]
    if text == "long":
        error = {"message": "too long", "code": "context_length_exceeded"}
        return json_answer({"error": error}, 400)
    if text == "fail":
        return json_answer({"error": {"message": "no luck", "code": None}}, 500)
    events = [{"choices": []}, *(chunk(f"{word} ") for word in text.split()), chunk("", "stop")]
    return slowly(event_stream(events)) if text.startswith("wait") else event_stream(events)


def slowly(pieces: Sequence[bytes]) -> Iterator[bytes]:
    for i, piece in enumerate(pieces):
        if i > 2:
            time.sleep(0.2)
        yield piece


@pytest.fixture
def server() -> Iterator[WebServer]:
    with web_server(chat_server) as running:
        yield running


class TestRemote:
    def test_chat(self, server: WebServer) -> None:
        backend = RemoteBackend(Endpoint(server.url, "key"), None)
        assert (backend.name, backend.max_model_len) == ("m", 50)
        messages = [{"role": "user", "content": "one two"}]
        assert backend.count_tokens(messages) == 7
        pieces = list(backend.stream(messages, {"temperature": 0.5}))
        assert "".join(p.text for p in pieces) == "one two "
        assert pieces[-1].finish_reason == "stop"
        sent = server.requests[-1]
        assert sent.json == {
            "temperature": 0.5,
            "model": "m",
            "messages": messages,
            "stream": True,
        }
        assert sent.headers["authorization"] == "Bearer key"
        assert RemoteBackend(Endpoint(server.url), "n").max_model_len is None

    def test_what_goes_wrong(self, server: WebServer) -> None:
        backend = RemoteBackend(Endpoint(server.url), "m")
        with pytest.raises(PromptTooLongError, match="too long"):
            list(backend.stream([{"role": "user", "content": "long"}], {}))
        with pytest.raises(HTTPError, match="no luck"):
            list(backend.stream([{"role": "user", "content": "fail"}], {}))
        with pytest.raises(ConfigError, match="has no model 'x'; it has m, n"):
            RemoteBackend(Endpoint(server.url), "x")

    def test_a_server_without_tokenize_is_not_asked_again(self) -> None:
        def without(request: Request) -> Any:
            return json_answer({}, 404) if request.path == "/tokenize" else chat_server(request)

        with web_server(without) as server:
            backend = RemoteBackend(Endpoint(server.url), "m")
            assert backend.count_tokens([]) is None
            assert backend.count_tokens([]) is None
        assert [r.path for r in server.requests].count("/tokenize") == 1

    @pytest.mark.parametrize(
        "event", [{"choices": [1]}, {"choices": 5}, {"choices": [{"delta": 1}]}]
    )
    def test_no_chat_chunks(self, event: Any) -> None:
        def odd(request: Request) -> Any:
            return event_stream([event]) if "chat" in request.path else chat_server(request)

        with web_server(odd) as server, pytest.raises(HTTPError, match="no chat chunk"):
            list(RemoteBackend(Endpoint(server.url), "m").stream([], {}))

    @pytest.mark.parametrize("answer", [{"data": []}, {"data": [1]}, {}])
    def test_no_models(self, answer: Any) -> None:
        with (
            web_server(lambda r: json_answer(answer)) as server,
            pytest.raises(HTTPError, match="which models"),
        ):
            RemoteBackend(Endpoint(server.url), None)


# -------------------------------------------------------------------- the program


def piped(arguments: Sequence[str], text: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "octavo", "chat", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        input=text,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


class TestPipe:
    def test_lines_in_answers_out(self, server: WebServer) -> None:
        text = '\n/system be kind\none \\\ntwo\n  /three\n"""four\n\nfive"""\n/exit\nsix\n'
        done = piped(["--url", server.url, "--temperature", "0.5"], text)
        assert (done.returncode, done.stdout) == (0, "one two \n/three \nfour five \n")
        assert done.stderr == "octavo: system prompt: be kind\n"
        bodies = [r.json for r in server.requests if "chat" in r.path]
        assert [len(b["messages"]) for b in bodies] == [2, 4, 6]
        assert bodies[0]["messages"][1]["content"] == "one \ntwo"
        assert bodies[2]["messages"][5]["content"] == "four\n\nfive"
        assert {b["temperature"] for b in bodies} == {0.5}

    def test_an_error_ends_it(self, server: WebServer) -> None:
        for line, words in (("fail", "no luck"), ("/nope", "/nope is no command")):
            done = piped(["--url", server.url], f"one\n{line}\ntwo\n")
            assert (done.returncode, done.stdout) == (1, "one \n" if line[0] == "/" else "one \n\n")
            assert words in done.stderr
            assert done.stderr.count("\n") == 1

    def test_in_process(self, tiny: Path) -> None:
        arguments = [str(tiny), "--max-tokens", "5", "--temperature", "0", "--max-model-len", "400"]
        done = piped(arguments, "hello\n\udcff".encode("utf-8", "surrogatepass").decode("latin-1"))
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("\n") >= 2
        assert "cut after max_tokens=5" in done.stderr

    def test_a_long_chat(self, tiny: Path) -> None:
        limits = ("--max-tokens", "8", "--max-model-len", "128", "--ignore-eos")
        done = piped([str(tiny), *limits, "--system", "be brief"], "hello\n" * 8)
        assert done.returncode == 0, done.stderr
        assert "the context of 128 tokens is full: the model no longer sees" in done.stderr
        assert done.stderr.count("cut after max_tokens=8") == 8

    def test_wrong_command_lines(
        self,
        capsys: pytest.CaptureFixture[str],
        monkeypatch: pytest.MonkeyPatch,
        server: WebServer,
    ) -> None:
        cli = Command(capsys, monkeypatch)
        url = ("--url", server.url)
        cli.fails("chat", *url, "--temperature", "9", words="temperature=9")
        cli.fails("chat", *url, "--n", "2", words="No such option: --n", status=2)
        cli.fails("chat", *url, "--dtype", "float32", words="drop --url")
        cli.fails("chat", *url, "--model", "x", words="it has m, n")
        cli.fails("chat", "--url", "nonsense", words="must be like http")
        cli.fails("chat", "--url", "http://127.0.0.1:9", words="http://127.0.0.1:9")
        cli.fails("chat", "/no/model", words="does not exist")


class TestTerminal:
    def test_a_chat_with_a_server(self, server: WebServer) -> None:
        with PtyProgram(["chat", "--url", server.url]) as program:
            assert "m, 50 tokens of context" in program.expect("\n> ")
            program.press("one two\n")
            assert "one two \n> " in program.expect("two \n> ")
            program.press("/help\n")
            program.expect("/system TEXT")
            program.press("/params temperature=0.25 stop='a b'\n")
            program.expect('temperature=0.25 stop="a b"\n> ')
            program.press("/params stop='a\n")
            program.expect("No closing quotation\n> ")
            program.press("/params stop= top_k=zero\n")
            program.expect("top_k='zero'")
            program.press("/params stop=\n")
            program.expect("\ntemperature=0.25\n> ")
            program.press("/system be kind\n")
            program.expect("system prompt: be kind\n> ")
            program.press('"""a\nb"""\n')
            program.expect("\na b \n> ")
            program.press("fail\n")
            program.expect("no luck\n> ")
            program.press("/nope\n")
            program.expect("/nope is no command; /help lists them\n> ")
            program.press("/reset\n")
            program.expect("a new conversation\n> ")
            program.press("three\n")
            program.expect("\nthree \n> ")
            program.press(CTRL_D)
            assert program.wait() == 0
        body = server.requests[-1].json
        assert [m["content"] for m in body["messages"]] == ["be kind", "three"]
        assert body["temperature"] == 0.25
        assert "stop" not in body
        assert "Traceback" not in program.shown

    def test_ctrl_c_stops_the_answer_and_not_the_program(self, server: WebServer) -> None:
        with PtyProgram(["chat", "--url", server.url]) as program:
            program.expect("\n> ")
            program.interrupt("(Ctrl-D leaves)\n> ")
            program.press("wait" + " x" * 30 + "\n")
            program.expect("\nwait x ")
            program.press(CTRL_C)
            program.expect("(stopped)\n> ")
            program.press("next\n")
            program.expect("\nnext \n> ")
            program.press("/exit\n")
            assert program.wait() == 0
        turns = server.requests[-1].json["messages"]
        assert turns[1]["role"] == "assistant"
        assert turns[1]["content"].startswith("wait")
        assert len(turns[1]["content"].split()) < 31

    def test_a_model_in_this_process(self, tiny: Path) -> None:
        """Ctrl-C in the middle of a long answer; then the engine answers again."""
        arguments = ["chat", str(tiny), "--ignore-eos", "--kv-cache-memory-bytes", "60000000"]
        with PtyProgram(arguments, NO_COLOR="1") as program:
            program.expect("tokens of context. /help lists the commands, Ctrl-D leaves.\n> ")
            program.press("hello\n")
            program.expect("hello\n")
            program.wait_for_more()  # it has begun to answer
            program.press(CTRL_C)
            program.expect("(stopped)\n> ")
            program.press("/params max_tokens=4\n")
            program.expect("max_tokens=4\n> ")
            program.press("again\n")
            program.expect("cut after max_tokens=4")
            program.expect("\n> ")
            program.press(CTRL_D)
            assert program.wait() == 0
        assert "Traceback" not in program.shown

    def test_answers_cannot_steer_the_terminal(self) -> None:
        def rude(request: Request) -> Any:
            if "chat" in request.path:
                return event_stream([chunk("a\x1b]0;title\x07\x9b2Jb\tc\rd\n"), chunk("", "stop")])
            return chat_server(request)

        with web_server(rude) as server, PtyProgram(["chat", "--url", server.url]) as program:
            program.expect("> ")
            program.press("hi\n")
            program.expect("a\ufffd]0;title\ufffd\ufffd2Jb")
            program.expect("\n> ")
            program.press(CTRL_D)
            program.wait()
