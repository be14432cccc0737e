"""The commands' own HTTP client, against a server that misbehaves in every way."""

from __future__ import annotations

import socket

import pytest

from octavo.entrypoints.http_client import Endpoint, HTTPError
from octavo.errors import ConfigError
from tests.entrypoints.web_server import event_stream, json_answer, web_server


@pytest.mark.parametrize(
    "url",
    ["", "localhost:8000", "ftp://x", "http://", "http://x:99999", "http://x:y", "http://[::1",
     "http://a b", "http://user:password@x", "http://x\r\nHost: y", "http://ü"],
)  # fmt: skip
def test_wrong_urls(url: str) -> None:
    with pytest.raises(ConfigError, match="must be like http"):
        Endpoint(url)


@pytest.mark.parametrize("key", ["a\nb", "ä", "a\r\nX: y"])
def test_wrong_keys(key: str) -> None:
    with pytest.raises(ConfigError, match="API key"):
        Endpoint("http://x", key)


def test_urls() -> None:
    assert Endpoint("http://x").port == 80
    assert Endpoint("https://x").port == 443
    assert Endpoint("http://x:1/v1/").prefix == ""
    assert Endpoint("http://x:1/octavo/v1").prefix == "/octavo"
    assert Endpoint("http://[::1]:5").host == "::1"


def test_get_post_and_key() -> None:
    with web_server(lambda r: json_answer({"path": r.path, "n": len(r.body)})) as server:
        endpoint = Endpoint(server.url + "/p/v1", "secret")
        assert endpoint.get("/v1/models") == {"path": "/p/v1/models", "n": 0}
        assert endpoint.post("/tokenize", {"a": 1})["n"] == len('{"a": 1}')
    assert [r.method for r in server.requests] == ["GET", "POST"]
    assert all(r.headers["authorization"] == "Bearer secret" for r in server.requests)
    assert server.requests[1].json == {"a": 1}


def test_events_end_with_done() -> None:
    events = [{"n": 1}, {"text": 'data: {"x"}\n\ndata: [DONE]'}, {"n": 3}]
    with web_server(lambda r: [*event_stream(events), b"junk"]) as server:
        assert list(Endpoint(server.url).events("/v1/x", {})) == events


def test_events_that_break_off() -> None:
    with web_server(lambda r: event_stream([{"n": 1}], end=b": nothing\n\n")) as server:
        events = Endpoint(server.url).events("/v1/x", {})
        assert next(events) == {"n": 1}
        with pytest.raises(HTTPError, match="broke off"):
            next(events)


def test_an_error_in_a_stream() -> None:
    error = {"error": {"message": "the engine died", "code": "engine_dead"}}
    with web_server(lambda r: event_stream([error])) as server, pytest.raises(HTTPError) as info:
        list(Endpoint(server.url).events("/v1/x", {}))
    assert (str(info.value), info.value.code) == ("the engine died", "engine_dead")


@pytest.mark.parametrize(
    ("answer", "words", "status"),
    [
        (json_answer({"error": {"message": "no", "code": None}}, 401), "^no$", 401),
        (json_answer({"detail": "no"}, 404), "status 404: .*detail", 404),
        (json_answer(["x"], 500), "status 500", 500),
        (json_answer("text"), "no JSON object", 0),
        (b"HTTP/1.1 200 X\r\ncontent-length: 3\r\n\r\n{x}", "no JSON object", 0),
        (b"HTTP/1.1 200 X\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n", "127.0.0.1", 0),
        (b"hello\r\n\r\n", "127.0.0.1", 0),
        (b"", "127.0.0.1", 0),
    ],
)
def test_wrong_answers(answer: bytes, words: str, status: int) -> None:
    with web_server(lambda r: answer) as server, pytest.raises(HTTPError, match=words) as info:
        Endpoint(server.url).get("/x")
    assert info.value.status == status


def test_nobody_listens() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
        with pytest.raises(HTTPError, match="refused"):
            Endpoint(url).get("/health")


def test_only_model() -> None:
    with web_server(lambda r: json_answer({"data": [{"id": "m"}, {"id": "n"}]})) as server:
        assert Endpoint(server.url).only_model() == "m"
    with (
        web_server(lambda r: json_answer({"data": []})) as server,
        pytest.raises(HTTPError, match="which models"),
    ):
        Endpoint(server.url).only_model()
