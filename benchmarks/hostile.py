"""Plain streams, quiet and beside hostile grammars: does the latency between tokens hold?

    python benchmarks/hostile.py [--seconds 60] [--output FILE]

Eight greedy streams run alone, beside four more plain ones (what company costs by itself), and then
beside four clients that send hostile structured outputs one after another: regex bombs, schemas
nested 60 deep, huge and ambiguous grammars, every one new, so that no cache helps. Rounds are
interleaved; the engine must answer a structured request afterwards.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import numpy as np

from octavo.config.engine import EngineConfig
from octavo.contracts.sampling_params import RequestOutputKind, SamplingParams
from octavo.contracts.structured_outputs import StructuredOutputsParams
from octavo.engine.async_llm import AsyncLLM
from octavo.entrypoints.bench.report import machine
from octavo.errors import OctavoError
from octavo.version import __version__

NUM_STREAMS = 8
NUM_CLIENTS = 4


def _nested(depth: int, maximum: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer", "maximum": maximum}
    for _ in range(depth):
        schema = {"type": "array", "items": schema, "maxItems": 3}
    return schema


def _chain(name: str, length: int, link: str, end: str) -> str:
    rules = (f"{name}{j}: {name}{j + 1}{link}" for j in range(length))
    return "\n".join([f"start: {name}0", *rules, f'{name}{length}: "{end}"'])


def _many_strings(i: int) -> dict[str, Any]:
    strings = {f"p{j}": {"type": "string", "maxLength": j % 40} for j in range(100 + i % 300)}
    return {"type": "object", "properties": strings}


HOSTILE = {
    "exponential regex": lambda i: {"regex": "(a|b)*a" + "(a|b)" * 20 + "x" * (i % 97)},
    "nested repeats": lambda i: {"regex": f"((a{{1,100}}){{1,100}}){{1,{100 + i % 900}}}"},
    "long repeats": lambda i: {"regex": f"(.{{0,5000}}x){{{100 + i % 90}}}"},
    "many words": lambda i: {"regex": "|".join(f"w{i}_{j}" for j in range(12_000))},
    "deep schema": lambda i: {"json": _nested(60, i % 9999)},
    "large multiple": lambda i: {
        "json": {"type": "integer", "multipleOf": 99_991 + 2 * i, "maximum": 10**15}
    },
    "many strings": lambda i: {"json": _many_strings(i)},
    "ambiguous": lambda i: {"grammar": f'start: a\na: a a | "x" | "y{i}" |'},
    "more ambiguous": lambda i: {"grammar": f'start: a\na: a a a | a a | "x{i}" | "xx" | "xxx" |'},
    "repeated rules": lambda i: {
        "grammar": f'start: (("a"{{1,1000}}){{1,1000}}){{1,{1000 + i % 900}}}'
    },
    "chain of rules": lambda i: {"grammar": _chain("a", 12_000, "", f"x{i}")},
    "chain of terminals": lambda i: {"grammar": _chain("A", 9_000, ' "y"', f"x{i}")},
}
"""By name: structured outputs, different for every number."""


async def stream(llm: AsyncLLM, number: int, stop: asyncio.Event, gaps: list[float]) -> None:
    """One plain stream after another; the time between its tokens, in seconds, goes to `gaps`."""
    params = SamplingParams(
        temperature=0, max_tokens=400, ignore_eos=True, output_kind=RequestOutputKind.DELTA
    )
    for turn in itertools.count():
        last = None
        outputs = llm.generate([10 + number] * 20, params, f"plain-{number}-{turn}")
        async for output in outputs:
            now = time.perf_counter()
            if last is not None:
                gaps.append((now - last) / max(1, len(output.outputs[0].token_ids)))
            last = now
            if stop.is_set():
                return


async def attack(
    llm: AsyncLLM, numbers: itertools.count[int], stop: asyncio.Event, ends: Counter[str]
) -> None:
    """One hostile request after another; how they ended goes to `ends`."""
    while not stop.is_set():
        i = next(numbers)
        name, make = list(HOSTILE.items())[i % len(HOSTILE)]
        params = SamplingParams(
            max_tokens=300, seed=i, structured_outputs=StructuredOutputsParams(**make(i))
        )
        try:
            async for output in llm.generate([5, 6, 7], params, f"hostile-{i}"):
                if stop.is_set():
                    return
                reason = output.outputs[0].finish_reason
            ends[f"{name}: {reason}"] += 1
        except OctavoError as error:
            ends[f"{name}: {type(error).__name__}"] += 1


Client = Callable[[int, asyncio.Event], Coroutine[Any, Any, None]]
"""One beside the streams, of a number, until the event is set."""


async def phase(llm: AsyncLLM, seconds: float, client: Client | None = None) -> dict[str, float]:
    """Milliseconds between tokens of the plain streams, beside `NUM_CLIENTS` clients."""
    stop = asyncio.Event()
    gaps: list[float] = []
    tasks = [asyncio.create_task(stream(llm, k, stop, gaps)) for k in range(NUM_STREAMS)]
    if client is not None:
        numbers = range(NUM_STREAMS, NUM_STREAMS + NUM_CLIENTS)
        tasks += [asyncio.create_task(client(k, stop)) for k in numbers]
    await asyncio.sleep(seconds)
    stop.set()
    await asyncio.gather(*tasks)
    p50, p99 = np.percentile(np.array(gaps) * 1e3, [50, 99])
    return {"tokens": len(gaps), "p50_ms": round(float(p50), 2), "p99_ms": round(float(p99), 2)}


async def run(args: argparse.Namespace) -> dict[str, Any]:
    """All rounds; raises where the engine does not answer at the end."""
    llm = await AsyncLLM.start(EngineConfig.from_flat(model=args.model, max_model_len=1024))
    ends: Counter[str] = Counter()
    numbers = itertools.count()
    seconds = args.seconds / args.rounds

    async def one_more(number: int, stop: asyncio.Event) -> None:
        await stream(llm, number, stop, [])

    async def attacker(number: int, stop: asyncio.Event) -> None:
        await attack(llm, numbers, stop, ends)

    rounds = []
    try:
        await phase(llm, 2)  # a warm engine
        for _ in range(args.rounds):
            quiet = await phase(llm, seconds / 2)
            company = await phase(llm, seconds / 2, one_more)
            hostile = await phase(llm, seconds, attacker)
            ratio = round(hostile["p99_ms"] / quiet["p99_ms"], 2)
            phases = {"quiet": quiet, "company": company, "hostile": hostile}
            rounds.append({**phases, "p99_ratio": ratio})
            print(json.dumps(rounds[-1]), flush=True)
        await llm.check_health()
        choice = StructuredOutputsParams(choice=["alive"])
        params = SamplingParams(max_tokens=8, structured_outputs=choice)
        async for output in llm.generate([5], params, "last"):
            text = output.outputs[0].text
        if text != "alive":
            raise SystemExit(f"the engine's last answer is {text!r}")
    finally:
        await llm.shutdown()
    return {
        "benchmark": "hostile",
        "octavo": __version__,
        "machine": machine(),
        "rounds": rounds,
        "ends": dict(sorted(ends.items())),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--seconds", type=float, default=60, help="of hostile load, in all")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output", type=Path, help="a JSON file")
    args = parser.parse_args()
    result = asyncio.run(run(args))
    for end, count in result["ends"].items():
        print(f"{count:5}  {end}")
    if args.output:
        args.output.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
