"""The child process of `octavo bench startup`: a configuration (JSON) from stdin, times to stdout.

python -m octavo.entrypoints.bench.load_once < config.json
"""

from __future__ import annotations

import json
import sys
import time


def main() -> None:
    """Print, as JSON: import_s, of all that an engine needs; load_s, of the engine; first_token_s,
    of a prompt of a few words, with a model that is loaded; second_load_s, of another engine after
    the first one was shut down; weights_mb; peak_mb, of the process after the first load."""
    start = time.perf_counter()
    import msgspec

    from octavo.config.engine import EngineConfig
    from octavo.contracts.sampling_params import SamplingParams
    from octavo.engine.llm_engine import LLMEngine
    from octavo.entrypoints.llm import LLM

    times = {"import_s": time.perf_counter() - start}
    config = msgspec.json.decode(sys.stdin.buffer.read(), type=EngineConfig)
    start = time.perf_counter()
    llm = LLM.from_engine(LLMEngine.from_config(config))
    times["load_s"] = time.perf_counter() - start
    weights, peak = llm.llm_engine.info.memory_plan.weights, _peak_bytes()
    start = time.perf_counter()
    llm.generate("Hello, my name is", SamplingParams(max_tokens=1), use_tqdm=False)
    times["first_token_s"] = time.perf_counter() - start
    llm.close()
    start = time.perf_counter()
    llm = LLM.from_engine(LLMEngine.from_config(config))
    times["second_load_s"] = time.perf_counter() - start
    llm.close()
    print(json.dumps({**times, "weights_mb": weights / 1e6, "peak_mb": peak / 1e6}))


def _peak_bytes() -> int:
    """Most memory held so far."""
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


if __name__ == "__main__":
    main()
