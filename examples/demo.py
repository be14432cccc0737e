"""A mixed batch on a real model: chats and completions, short and long, greedy and random, one
prompt that shares a long beginning with another. This is `make demo`.

    python examples/demo.py [MODEL]
"""

from __future__ import annotations

import sys
import time

from octavo import LLM, RequestOutput, SamplingParams
from octavo.worker.memory import format_plan

RULES = "You are a careful librarian. Answer in one short sentence. " + " ".join(
    f"Rule {i}: shelf {i} holds the books whose number ends in {i}." for i in range(1, 25)
)
GREEDY = SamplingParams(temperature=0, max_tokens=40)


def chat(llm: LLM, question: str, system: str | None = None) -> dict[str, list[int]]:
    """A prompt of token ids: a conversation through the model's chat template."""
    turns = [{"role": "system", "content": system}] if system else []
    messages = [*turns, {"role": "user", "content": question}]
    return {"prompt_token_ids": llm.get_tokenizer().apply_chat_template(messages)}


def show(title: str, output: RequestOutput) -> None:
    cached = f", {output.num_cached_tokens} cached" if output.num_cached_tokens else ""
    print(f"\n{title}  [{len(output.prompt_token_ids)} prompt tokens{cached}]")
    for completion in output.outputs:
        text = " ".join(completion.text.split())
        print(f"  {text}  [{len(completion.token_ids)} tokens, {completion.finish_reason}]")


def main() -> None:
    model = sys.argv[1] if len(sys.argv) > 1 else "smollm2-135m"
    start = time.perf_counter()
    with LLM(model, max_model_len=2048, max_num_batched_tokens=256) as llm:
        print(f"{model}: ready after {time.perf_counter() - start:.1f} s")
        print(format_plan(llm.llm_engine.info.memory_plan))
        warm = SamplingParams(temperature=0, max_tokens=1)
        llm.generate([chat(llm, "Who are you?", RULES)], warm, use_tqdm=False)

        seeded = SamplingParams(temperature=0.8, top_p=0.95, seed=7, n=3, max_tokens=24)
        stopped = SamplingParams(temperature=0, max_tokens=64, stop=["\n\n"])
        batch = {
            "A question": (chat(llm, "What is the capital of France?"), GREEDY),
            "A completion": ("Water boils at", GREEDY),
            "Code, to the first blank line": ("def fibonacci(n):\n", stopped),
            "Three endings, seeded": ("Once upon a time, a printer", seeded),
            "A long prompt, its beginning cached": (
                chat(llm, "What is on shelf 7?", RULES),
                GREEDY,
            ),
            "Another one": (chat(llm, "What is on shelf 12?", RULES), GREEDY),
        }
        engine = llm.llm_engine
        for title, (prompt, params) in batch.items():
            engine.add_request(title, prompt, params)
        outputs: dict[str, RequestOutput] = {}
        steps, most_used, start = 0, 0, time.perf_counter()
        while engine.has_unfinished_requests():
            outputs |= {o.request_id: o for o in engine.step()}
            steps += 1
            most_used = max(most_used, engine.stats().num_used_blocks)
        seconds = time.perf_counter() - start
        for title in batch:
            show(title, outputs[title])

        num_prompt = sum(len(o.prompt_token_ids) for o in outputs.values())
        num_cached = sum(o.num_cached_tokens for o in outputs.values())
        num_new = sum(len(c.token_ids) for o in outputs.values() for c in o.outputs)
        stats = engine.stats()
        print(
            f"\n{len(batch)} requests in {steps} steps and {seconds:.2f} s: {num_prompt} prompt "
            f"tokens ({num_cached} from the cache), {num_new} new, {num_new / seconds:.0f} tokens/s"
            f"\nKV cache: at most {most_used} of {stats.num_blocks} blocks of 16 tokens in use "
            f"({most_used / stats.num_blocks:.1%}), {stats.num_cached_blocks} kept for reuse"
        )

        title, (prompt, params) = "A question", batch["A question"]
        (alone,) = llm.generate([prompt], params, use_tqdm=False)
        same = alone.outputs[0].token_ids == outputs[title].outputs[0].token_ids
        print(f"{title!r} alone gives {'the same' if same else 'OTHER'} tokens as in the batch")


if __name__ == "__main__":
    main()
