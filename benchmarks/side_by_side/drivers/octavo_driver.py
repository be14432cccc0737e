"""Octavo: `LLM.generate`, the whole engine."""

from __future__ import annotations

from typing import Any

from protocol import Driver, serve

from octavo import LLM, SamplingParams, __version__


class OctavoDriver(Driver):
    def __init__(self, model: str, num_threads: int, **options: Any) -> None:
        self._options = options
        self._llm = LLM(model, num_threads=num_threads, **options)

    def versions(self) -> dict[str, str]:
        return {"octavo": __version__, **{k: str(v) for k, v in self._options.items()}}

    def generate(self, prompts: list[list[int]], num_tokens: int) -> list[list[int]]:
        params = SamplingParams(temperature=0.0, max_tokens=num_tokens, ignore_eos=True)
        outputs = self._llm.generate(
            [{"prompt_token_ids": ids} for ids in prompts], params, use_tqdm=False
        )
        return [list(output.outputs[0].token_ids) for output in outputs]


if __name__ == "__main__":
    serve(OctavoDriver)
