"""What front end and core say over their socket. Every frame is one msgpack message of this file.

front end                               core process
          ◄── Hello ────────────────────  started, wants to know what to be
Start ──►                                 loads the model
          ◄── Ready | Failed ───────────
Add, Abort, Call, Shutdown ──►
          ◄── Outputs, Result, Dead ────
          ◄── Heartbeat ────────────────  once a second, by a socket of its own

A further front end of the same core, which may come later and come anew, begins otherwise:
Attach ──►
          ◄── Ready | Failed ───────────
"""

from __future__ import annotations

import msgspec

from octavo.config.engine import EngineConfig
from octavo.contracts.codec import Decoder
from octavo.contracts.engine_view import EngineView
from octavo.contracts.kv_spec import MemoryPlan
from octavo.contracts.messages import EngineOutputs, EngineRequest

HEARTBEAT_SECONDS = 1.0


class Start(msgspec.Struct, tag="start"):
    """Become the engine of this configuration. `model_path` is a local file or folder."""

    config: EngineConfig
    model_path: str


class Attach(msgspec.Struct, tag="attach"):
    """A further front end has started: end what was asked for by its address before."""


class Add(msgspec.Struct, tag="add"):
    """A request. It is decoded on its own, so that a broken one is answered under its id. One whose
    id is in use is dropped: an answer would be taken for the first one's."""

    request_id: str
    request: msgspec.Raw


class Abort(msgspec.Struct, tag="abort"):
    """End requests."""

    request_ids: list[str]


class Call(msgspec.Struct, tag="call"):
    """Call one of the core's few callable methods; the answer is a `Result` of the same id.

    Attributes:
        arguments: by name, for methods that take any.
    """

    call_id: int
    method: str
    arguments: dict[str, int | str | list[int]] = {}


class Shutdown(msgspec.Struct, tag="shutdown"):
    """Stop now. (The front end drains; the core need not know why.)"""


class Hello(msgspec.Struct, tag="hello"):
    """The core process is up."""

    pid: int


class CoreInfo(msgspec.Struct, kw_only=True):
    """What the front end needs to know of a core.

    Attributes:
        config: resolved.
        kv_cache_dtype: for display.
    """

    config: EngineConfig
    memory_plan: MemoryPlan
    vocab_size: int
    hidden_size: int
    kv_cache_dtype: str


class Ready(msgspec.Struct, tag="ready"):
    """The model is loaded; requests are welcome."""

    info: CoreInfo


class Failed(msgspec.Struct, tag="failed"):
    """The engine cannot be built: `error` names a class of octavo.errors."""

    error: str
    message: str


class Outputs(msgspec.Struct, tag="outputs"):
    """What a step brought for this front end; without outputs, only the counters are new."""

    outputs: EngineOutputs


class Result(msgspec.Struct, tag="result"):
    """The answer to a `Call`: `error` is the message if it failed."""

    call_id: int
    value: bool | str | EngineView | None = None
    error: str | None = None


class Heartbeat(msgspec.Struct, tag="heartbeat"):
    """The process is running, however long the step in progress takes.

    Attributes:
        turn: how often the core's loop has come round (at least once a second when idle); a turn
            that stays the same for many beats is a step that hangs.
    """

    turn: int


class Dead(msgspec.Struct, tag="dead"):
    """The engine cannot go on; the process ends after this."""

    message: str


ToCore = Start | Attach | Add | Abort | Call | Shutdown
FromCore = Hello | Ready | Failed | Outputs | Heartbeat | Result | Dead

to_core_decoder: Decoder[ToCore] = Decoder(ToCore)  # type: ignore[arg-type]
from_core_decoder: Decoder[FromCore] = Decoder(FromCore)  # type: ignore[arg-type]
request_decoder: Decoder[EngineRequest] = Decoder(EngineRequest)
