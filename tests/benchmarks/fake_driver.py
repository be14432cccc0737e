"""A driver whose engine counts up from the last token of each prompt. Its arguments misbehave."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks" / "side_by_side" / "drivers"))

from protocol import Driver, serve


class FakeDriver(Driver):
    def __init__(self, fails: str = "", vocab_size: int = 1000) -> None:
        print("an engine that prints to stdout", flush=True)
        self._fails = fails
        if fails == "load":
            raise ValueError("no such weights")
        if fails == "exit at load":
            print("killed by its own hand", file=sys.stderr, flush=True)
            os._exit(3)

    def versions(self) -> dict[str, str]:
        return {"fake": "1"}

    def prepare(self, num_prompts: int, num_tokens: int) -> None:
        self.prepared = (num_prompts, num_tokens)

    def generate(self, prompts: list[list[int]], num_tokens: int) -> list[list[int]]:
        assert self.prepared == (len(prompts), max(map(len, prompts)) + num_tokens)
        if self._fails == "long prompts" and len(prompts[0]) < 1000 and num_tokens != 4:
            raise RuntimeError("too short for me")
        if self._fails == "tokens" and num_tokens != 4:
            num_tokens -= 1
        if self._fails == "time":
            time.sleep(60)
        return [[p[-1] + 1 + i for i in range(num_tokens)] for p in prompts]


if __name__ == "__main__":
    serve(FakeDriver)
