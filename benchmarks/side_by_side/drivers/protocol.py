"""What a driver is: a process that loads one engine once and then runs workloads when asked.

It speaks JSON, a line per message, on stdin and stdout. It imports nothing but the standard library
and its engine, so that each runs in its own virtual environment.

    → its arguments are one JSON object: {"model": …, "num_threads": …, …}
    ← {"ready": true, "versions": {…}}                       once the engine is loaded
    → {"command": "generate", "prompts": [[id, …], …], "num_tokens": 128}
    ← {"seconds": …, "token_ids": [[id, …], …]}
    → {"command": …}                                          what else a driver offers
    ← {"error": "…"}                                          instead of any answer
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from abc import ABC, abstractmethod
from typing import Any


class Driver(ABC):
    """One loaded engine."""

    @abstractmethod
    def versions(self) -> dict[str, str]:
        """Names and versions of what runs, and the settings that make it fast."""

    @abstractmethod
    def generate(self, prompts: list[list[int]], num_tokens: int) -> list[list[int]]:
        """Greedily complete all prompts at once, `num_tokens` each whatever they are."""

    def prepare(self, num_prompts: int, num_tokens: int) -> None:  # noqa: B027 - most need none
        """Before the clock starts: get ready for prompts that end with `num_tokens` tokens each."""

    def handle(self, message: dict[str, Any]) -> dict[str, Any]:
        """Answer a message. Drivers that offer more extend this."""
        if message["command"] != "generate":
            raise ValueError(f"unknown command {message['command']!r}")
        prompts, num_tokens = message["prompts"], message["num_tokens"]
        self.prepare(len(prompts), max(map(len, prompts)) + num_tokens)
        start = time.perf_counter()
        token_ids = self.generate(prompts, num_tokens)
        return {"seconds": time.perf_counter() - start, "token_ids": token_ids}


def serve(driver_class: type[Driver]) -> None:
    """The main function of a driver: load, then answer until stdin ends.

    Engines print to stdout as they like; that goes to stderr.
    """
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    try:
        driver = driver_class(**json.loads(sys.argv[1]))
        answer: dict[str, Any] = {"ready": True, "versions": driver.versions()}
    except Exception as error:
        traceback.print_exc()
        print(json.dumps({"error": _text(error)}), file=answers)
        return
    print(json.dumps(answer), file=answers)
    for line in sys.stdin:
        try:
            answer = driver.handle(json.loads(line))
        except Exception as error:
            traceback.print_exc()
            answer = {"error": _text(error)}
        print(json.dumps(answer), file=answers)


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
