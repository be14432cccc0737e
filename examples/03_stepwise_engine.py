"""Drive the engine step by step: requests come and go while others run (continuous batching)."""

from octavo import LLMEngine, SamplingParams
from octavo.config.engine import EngineConfig

arrivals = {
    0: ("first", "Once upon a time", 24),
    5: ("second", "The three laws of robotics:", 16),
    8: ("third", "In the beginning", 8),
}

with LLMEngine.from_config(EngineConfig.from_flat(model="smollm2-135m")) as engine:
    step = 0
    while engine.has_unfinished_requests() or step <= max(arrivals):
        if step in arrivals:
            request_id, prompt, max_tokens = arrivals[step]
            engine.add_request(
                request_id, prompt, SamplingParams(temperature=0, max_tokens=max_tokens)
            )
        if step == 20:
            engine.abort_request("first")
        for output in engine.step():
            completion = output.outputs[0]
            if output.finished:
                print(f"step {step}: {output.request_id} ends ({completion.finish_reason}):")
                print(f"    {output.prompt}{completion.text!r}")
        stats = engine.stats()
        print(f"step {step}: {stats.num_running} running, {stats.num_used_blocks} KV blocks")
        step += 1
