"""Several completions of one prompt: it is computed once, and each has its own random stream."""

from octavo import LLM, SamplingParams

params = SamplingParams(n=4, temperature=0.9, top_p=0.95, seed=7, max_tokens=24, logprobs=0)

with LLM("smollm2-135m") as llm:
    (output,) = llm.generate("My favourite animal is", params)
    for completion in output.outputs:
        assert completion.cumulative_logprob is not None
        mean = completion.cumulative_logprob / len(completion.token_ids)
        print(f"{completion.index}: {completion.text!r} (mean logprob {mean:.2f})")

    # A seed belongs to its request: whatever else runs, and for every n, completion 0 is the same.
    alone = SamplingParams(n=1, temperature=0.9, top_p=0.95, seed=7, max_tokens=24)
    (again,) = llm.generate("My favourite animal is", alone)
    assert again.outputs[0].token_ids == output.outputs[0].token_ids
