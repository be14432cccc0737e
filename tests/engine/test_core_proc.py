"""The core process on its socket, spoken to frame by frame: what it survives, and how it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.config.engine import EngineConfig
from octavo.contracts.codec import Encoder
from octavo.contracts.messages import EngineOutput, EngineRequest, FinishReason
from octavo.contracts.sampling_params import SamplingParams
from octavo.engine import wire
from octavo.engine.core_launch import AttachedCore, CoreHandle
from tests.tiny_model import write_tiny_llama

ENCODER = Encoder()


class Client:
    """A front end that does just what it is told."""

    def __init__(self, handle: CoreHandle | AttachedCore) -> None:
        self.handle = handle

    def send(self, message: wire.ToCore) -> None:
        self.send_raw(ENCODER.encode(message))

    def send_raw(self, frame: bytes) -> None:
        self.handle.socket.send_multipart([self.handle.identity, frame])

    def receive(self, kind: type) -> wire.FromCore:
        """The next message of a kind; others are passed over."""
        while self.handle.socket.poll(20_000):
            message = wire.from_core_decoder.decode(self.handle.socket.recv_multipart()[1])
            if isinstance(message, kind):
                return message
        raise AssertionError(f"no {kind.__name__} in 20 s")

    def start(self, config: EngineConfig, path: Path) -> None:
        self.receive(wire.Hello)
        self.send(wire.Start(config=config, model_path=str(path)))

    def add(self, request: EngineRequest, envelope: str | None = None) -> None:
        body = msgspec.Raw(ENCODER.encode(request))
        self.send(wire.Add(request_id=envelope or request.request_id, request=body))

    def outputs(self, request_id: str) -> list[EngineOutput]:
        """All outputs of a request until it ends."""
        seen: list[EngineOutput] = []
        while not seen or seen[-1].finish_reason is None:
            message = self.receive(wire.Outputs)
            assert isinstance(message, wire.Outputs)
            seen += [o for o in message.outputs.outputs if o.request_id == request_id]
        return seen


def request(request_id: str, **fields: object) -> EngineRequest:
    params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True, seed=0)
    values = {"prompt_token_ids": [1, 2, 3], "sampling_params": params, **fields}
    return EngineRequest(request_id=request_id, **values)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def client(model: Path) -> Iterator[Client]:
    handle = CoreHandle()
    client = Client(handle)
    client.start(EngineConfig.from_flat(num_threads=1, num_gpu_blocks_override=64), model)
    ready = client.receive(wire.Ready)
    assert isinstance(ready, wire.Ready)
    assert ready.info.vocab_size == 257
    yield client
    assert handle.close() == 0


def is_alive(client: Client) -> None:
    """The core answers a new request, and has no block in use after it."""
    client.add(request("probe"))
    outputs = client.outputs("probe")
    assert sum(len(o.new_token_ids) for o in outputs) == 4
    client.send(wire.Abort(request_ids=["probe"]))  # it has ended: only the counters come of it
    while True:
        message = client.receive(wire.Outputs)
        assert isinstance(message, wire.Outputs)
        if not message.outputs.outputs and message.outputs.stats is not None:
            assert message.outputs.stats.num_running == 0
            assert message.outputs.stats.num_used_blocks == 0
            return


def is_unanswered(client: Client) -> None:
    """What was sent last has no answer; whoever asks next has."""
    client.send(wire.Call(call_id=77, method="is_paused"))
    while not isinstance(message := client.receive(object), wire.Result):
        assert isinstance(message, (wire.Heartbeat, wire.Outputs))
        assert isinstance(message, wire.Heartbeat) or not message.outputs.outputs
    assert message == wire.Result(call_id=77, value=False)


class TestHostileFrames:
    @pytest.mark.parametrize(
        "frame",
        [
            b"",
            b"\xc1",
            b"\x93\x01\x02",
            b"x" * 100_000,
            b"\x81" * 100_000,
            msgspec.msgpack.encode({"type": "add"}),
            msgspec.msgpack.encode({"type": "add", "request_id": 5, "request": {}}),
            msgspec.msgpack.encode({"type": "nonsense"}),
            msgspec.msgpack.encode({"type": "abort", "request_ids": "abc"}),
            msgspec.msgpack.encode({"type": "abort", "request_ids": ["unknown"] * 10}),
            msgspec.msgpack.encode({"type": "start", "model_path": "x"}),
            msgspec.msgpack.encode({"type": "call", "call_id": "x", "method": "x"}),
        ],
    )
    def test_are_dropped(self, client: Client, frame: bytes) -> None:
        client.send_raw(frame)
        is_unanswered(client)
        is_alive(client)

    def test_a_second_start_is_dropped(self, client: Client, model: Path) -> None:
        client.send(wire.Start(config=EngineConfig(), model_path=str(model)))
        is_unanswered(client)
        is_alive(client)

    @settings(max_examples=30)
    @given(st.data())
    def test_no_mutation_harms(self, client: Client, data: st.DataObject) -> None:
        frame = bytearray(
            ENCODER.encode(
                wire.Add(request_id="m", request=msgspec.Raw(ENCODER.encode(request("m"))))
            )
        )
        for _ in range(data.draw(st.integers(1, 4))):
            frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
        client.send_raw(bytes(frame[: data.draw(st.integers(0, len(frame)))]))
        client.send(wire.Abort(request_ids=["m"]))
        client.add(request("after"))
        assert client.outputs("after")[-1].finish_reason is FinishReason.LENGTH
        client.send(wire.Abort(request_ids=["m"]))

    @pytest.mark.parametrize("method", ["check_grammar", "forget_grammar"])
    def test_grammars_that_are_none(self, client: Client, method: str) -> None:
        wrong: list[dict[str, Any]] = [{}, {"kind": "json"}, {"kind": "python", "text": "x"}]
        wrong += [{"kind": "regex", "text": "x", "first": [i]} for i in (-1, 2**31)]
        for arguments in wrong:
            client.send(wire.Call(call_id=1, method=method, arguments=arguments))
            result = client.receive(wire.Result)
            assert (result.error or "").startswith(f"{method}: "), result

    def test_methods_are_a_short_list(self, client: Client) -> None:
        client.send(wire.Call(call_id=1, method="shutdown"))
        assert client.receive(wire.Result) == wire.Result(
            call_id=1, error="unknown method 'shutdown'"
        )


class TestRefusedRequests:
    @pytest.mark.parametrize(
        ("bad", "text"),
        [
            (request("bad", prompt_token_ids=[]), "prompt"),
            (request("bad", prompt_token_ids=[1] * 2000), "max_model_len"),
            (request("bad", prompt_token_ids=[-1]), "-1"),
            (request("bad", prompt_token_ids=[257]), "257"),
            (request("bad", prompt_token_ids=[2**62]), str(2**62)),
            (request("bad", sampling_params=None), "sampling_params"),
            (request("bad", lora_name="x"), "lora"),
        ],
    )
    def test_fail_alone(self, client: Client, bad: EngineRequest, text: str) -> None:
        client.add(bad)
        (output,) = client.outputs("bad")
        assert output.finish_reason is FinishReason.ERROR
        assert output.error is not None
        assert text in output.error
        is_alive(client)

    def test_wrong_envelope(self, client: Client) -> None:
        client.add(request("inside"), envelope="outside")
        (output,) = client.outputs("outside")
        assert output.finish_reason is FinishReason.ERROR
        is_alive(client)

    def test_wrong_body(self, client: Client) -> None:
        client.send(wire.Add(request_id="w", request=msgspec.Raw(b"\x01")))
        (output,) = client.outputs("w")
        assert output.finish_reason is FinishReason.ERROR
        is_alive(client)

    def test_a_duplicate_id_leaves_the_first_alone(self, client: Client) -> None:
        params = SamplingParams(temperature=0, max_tokens=200, ignore_eos=True, seed=0)
        client.add(request("twice", sampling_params=params))
        client.add(request("twice", prompt_token_ids=[9] * 5))
        outputs = client.outputs("twice")
        assert outputs[-1].finish_reason is FinishReason.LENGTH
        assert sum(len(o.new_token_ids) for o in outputs) == 200
        is_alive(client)


@pytest.fixture
def two(model: Path) -> Iterator[tuple[Client, Client]]:
    """Two front ends of one core."""
    handle = CoreHandle(num_front_ends=2)
    attached = AttachedCore(handle.addresses[1])
    first, second = Client(handle), Client(attached)
    first.start(EngineConfig.from_flat(num_threads=1, num_gpu_blocks_override=64), model)
    first.receive(wire.Ready)
    try:
        attach(second)
        yield first, second
    finally:
        attached.close()
        assert handle.close() == 0


def attach(client: Client) -> None:
    """Say so as soon as the core has connected: before, it is an error."""
    deadline = time.monotonic() + 10
    while True:
        try:
            client.send(wire.Attach())
            break
        except zmq.ZMQError as error:
            assert error.errno == zmq.EHOSTUNREACH
            assert time.monotonic() < deadline
            time.sleep(0.01)
    assert isinstance(client.receive(wire.Ready), wire.Ready)


class TestSeveralFrontEnds:
    def test_each_gets_its_own_requests_outputs(self, two: tuple[Client, Client]) -> None:
        """Of the same id, too."""
        lengths = (3, 7)
        for client, length in zip(two, lengths):
            params = SamplingParams(max_tokens=length, ignore_eos=True, seed=0)
            client.add(request("same", sampling_params=params))
        for client, length in zip(two, lengths):
            assert sum(len(o.new_token_ids) for o in client.outputs("same")) == length

    def test_a_fork_shares_its_own_parents_blocks(self, two: tuple[Client, Client]) -> None:
        prompt = list(range(1, 49))
        for client in two:
            client.add(request("p", prompt_token_ids=prompt))
            client.add(request("c", prompt_token_ids=prompt, fork_of="p"))
        for client in two:
            ended = {
                o.request_id: o.finish_reason
                for _ in range(2)
                for o in self._until_end(client)
                if o.finish_reason is not None
            }
            assert ended == dict.fromkeys("pc", FinishReason.LENGTH)

    @staticmethod
    def _until_end(client: Client) -> list[EngineOutput]:
        while True:
            message = client.receive(wire.Outputs)
            assert isinstance(message, wire.Outputs)
            if any(o.finish_reason is not None for o in message.outputs.outputs):
                return message.outputs.outputs

    def test_an_abort_reaches_only_ones_own(self, two: tuple[Client, Client]) -> None:
        params = SamplingParams(max_tokens=40, ignore_eos=True, seed=0)
        for client in two:
            client.add(request("same", sampling_params=params))
        two[1].send(wire.Abort(request_ids=["same"]))
        assert sum(len(o.new_token_ids) for o in two[0].outputs("same")) == 40
        is_alive(two[1])

    def test_who_comes_anew_ends_what_was_asked_before(self, two: tuple[Client, Client]) -> None:
        first, second = two
        params = SamplingParams(max_tokens=900, ignore_eos=True, seed=0)
        for client in two:
            client.add(request("long", sampling_params=params))
            client.receive(wire.Outputs)
        second.handle.close()
        anew = AttachedCore(first.handle.addresses[1])  # type: ignore[union-attr]
        try:
            attach(Client(anew))
            Client(anew).add(
                request("long", sampling_params=msgspec.structs.replace(params, max_tokens=5))
            )
            assert sum(len(o.new_token_ids) for o in Client(anew).outputs("long")) == 5
            first.send(wire.Abort(request_ids=["long"]))
            is_alive(first)
        finally:
            anew.close()

    def test_only_the_first_may_stop_the_core(self, two: tuple[Client, Client]) -> None:
        first, second = two
        second.send(wire.Shutdown())
        is_unanswered(second)
        is_alive(second)
        first.send(wire.Attach())  # it has been there from the start
        is_alive(first)


class TestEnds:
    def test_what_cannot_start_says_why(self, tmp_path: Path) -> None:
        handle = CoreHandle()
        client = Client(handle)
        client.start(EngineConfig(), tmp_path / "nothing-here")
        failed = client.receive(wire.Failed)
        assert isinstance(failed, wire.Failed)
        assert handle.close() == 1
        assert "nothing-here" in failed.message

    def test_signals_are_the_front_ends_business(self, client: Client) -> None:
        for signum in (signal.SIGINT, signal.SIGTERM):
            client.handle.process.send_signal(signum)
        is_alive(client)
        assert client.handle.process.poll() is None

    def test_it_ends_with_its_front_end(self, model: Path) -> None:
        """kill -9 of the front end, with a request running: the core is gone within 5 s."""
        code = f"""
import sys, time
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from tests.engine.test_core_proc import *
handle = CoreHandle()
client = Client(handle)
client.start(EngineConfig.from_flat(num_threads=1, num_gpu_blocks_override=64), {str(model)!r})
client.receive(wire.Ready)
params = SamplingParams(max_tokens=500, ignore_eos=True, seed=0)
client.add(request("long", sampling_params=params))
client.receive(wire.Outputs)
print(handle.process.pid, handle.folder, flush=True)
time.sleep(60)
"""
        front = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        assert front.stdout is not None
        pid, folder = front.stdout.readline().split()
        front.kill()
        front.wait()
        front.stdout.close()
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline and _runs(int(pid)):
            time.sleep(0.05)
        assert not _runs(int(pid))
        assert not Path(folder).exists()

    def test_close_is_quick_and_leaves_nothing(self, model: Path) -> None:
        handle = CoreHandle()
        client = Client(handle)
        client.start(EngineConfig.from_flat(num_threads=1, num_gpu_blocks_override=64), model)
        client.receive(wire.Ready)
        assert handle.close() == 0
        assert handle.close() == 0
        assert not handle.folder.exists()

    def test_killed(self, model: Path) -> None:
        handle = CoreHandle()
        statuses: list[int] = []
        handle.watch(statuses.append)
        handle.process.kill()
        assert handle.close() == -9
        deadline = time.monotonic() + 30
        while not statuses and time.monotonic() < deadline:
            time.sleep(0.01)
        assert statuses == [-9]


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_core_that_cannot_be_started_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no-python"))
    before = set(os.listdir("/proc/self/fd"))
    with pytest.raises(FileNotFoundError):
        CoreHandle()
    assert list(tmp_path.iterdir()) == []
    assert set(os.listdir("/proc/self/fd")) == before


def test_the_socket_is_private() -> None:
    handle = CoreHandle()
    try:
        assert handle.folder.stat().st_mode & 0o777 == 0o700
        assert handle.socket.getsockopt(zmq.LAST_ENDPOINT).startswith(b"ipc://")
    finally:
        handle.close()
