"""Beam search: the most likely continuations, beside the greedy one. Beams share the prompt's KV
blocks, copy the one that is partly filled, and compute one token each per step."""

from octavo import LLM, BeamSearchParams, SamplingParams

prompt = "The three primary colours are"
params = BeamSearchParams(beam_width=4, max_tokens=12, length_penalty=1.0, early_stopping=True)

with LLM("smollm2-135m") as llm:
    greedy = llm.generate(prompt, SamplingParams(temperature=0, max_tokens=12, logprobs=0))
    completion = greedy[0].outputs[0]
    print(f"greedy {completion.cumulative_logprob:7.3f} {completion.text!r}")
    for sequence in llm.beam_search([prompt], params)[0].sequences:
        text = sequence.text.removeprefix(prompt)
        print(f"beam   {sequence.cum_logprob:7.3f} {text!r} ({sequence.finish_reason})")
