"""Complete a list of prompts. They run together, as one continuous batch."""

from octavo import LLM, SamplingParams

prompts = [
    "The capital of France is",
    "A list of primes: 2, 3, 5,",
    "def fibonacci(n):",
]
params = SamplingParams(temperature=0, max_tokens=24)

with LLM("smollm2-135m") as llm:
    for output in llm.generate(prompts, params):
        completion = output.outputs[0]
        print(f"{output.prompt!r} → {completion.text!r} ({completion.finish_reason})")
