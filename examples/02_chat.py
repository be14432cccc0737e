"""Answer a conversation through the model's chat template, and print the text as it comes."""

from octavo import LLM, SamplingParams

messages = [
    {"role": "system", "content": "You answer in one short sentence."},
    {"role": "user", "content": "What is the capital of France?"},
]

with LLM("smollm2-135m") as llm:
    (output,) = llm.chat(messages, SamplingParams(temperature=0, max_tokens=48))
    answer = output.outputs[0].text
    print(answer)

    messages += [
        {"role": "assistant", "content": answer},
        {"role": "user", "content": "And of Italy?"},
    ]
    prompt = llm.get_tokenizer().apply_chat_template(messages)
    for delta in llm.stream(prompt, SamplingParams(temperature=0, max_tokens=48)):
        print(delta.outputs[0].text, end="", flush=True)
    print()
