"""Prompts that begin alike share the KV of their beginning: it is computed once."""

import time

from octavo import LLM, SamplingParams

document = "The printer folds a sheet four times, which makes sixteen pages. " * 40
questions = ["How often is it folded?", "How many pages are there?", "Who folds the sheet?"]
params = SamplingParams(temperature=0, max_tokens=8)

with LLM("smollm2-135m") as llm:
    for question in questions:
        start = time.perf_counter()
        (output,) = llm.generate(f"{document}\nQuestion: {question}\nAnswer:", params)
        seconds, total = time.perf_counter() - start, len(output.prompt_token_ids)
        print(f"{output.num_cached_tokens:4d} of {total} prompt tokens cached, {seconds:.2f} s")

    # Another salt is another cache: nothing can be learnt from the time a prompt takes.
    prompt = {"prompt": f"{document}\nQuestion: {questions[0]}", "cache_salt": "another tenant"}
    (output,) = llm.generate(prompt, params)
    print(f"{output.num_cached_tokens:4d} cached with another cache_salt")
