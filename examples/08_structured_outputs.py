"""Outputs bound to a JSON schema, an expression and a choice, in one batch with a free one."""

import json

from octavo import LLM, SamplingParams, StructuredOutputsParams

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "legs": {"type": "integer", "minimum": 0, "maximum": 8},
    },
    "required": ["name", "legs"],
    "additionalProperties": False,
}
asked = {
    "An animal as JSON: ": StructuredOutputsParams(json=SCHEMA),
    "A date: ": StructuredOutputsParams(regex=r"\d{4}-\d{2}-\d{2}"),
    "Is the sky blue? Answer: ": StructuredOutputsParams(choice=["yes", "no"]),
    "The sky is": None,
}
params = [
    SamplingParams(temperature=0, max_tokens=40, structured_outputs=structured)
    for structured in asked.values()
]

with LLM("smollm2-135m") as llm:
    outputs = llm.generate(list(asked), params)
    for output in outputs:
        print(f"{output.prompt!r} → {output.outputs[0].text!r} ({output.outputs[0].finish_reason})")
    print("legs:", json.loads(outputs[0].outputs[0].text)["legs"])
