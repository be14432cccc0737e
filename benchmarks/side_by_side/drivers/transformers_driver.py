"""Hugging Face transformers: `generate` on one rectangular batch, bfloat16, SDPA attention."""

from __future__ import annotations

import torch
import transformers
from protocol import Driver, serve


class TransformersDriver(Driver):
    def __init__(self, model: str, num_threads: int) -> None:
        torch.set_num_threads(num_threads)
        self._model = transformers.AutoModelForCausalLM.from_pretrained(
            model, dtype=torch.bfloat16, attn_implementation="sdpa"
        ).eval()
        self._model.generation_config.eos_token_id = None

    def versions(self) -> dict[str, str]:
        return {"transformers": transformers.__version__, "torch": torch.__version__}

    @torch.inference_mode()
    def generate(self, prompts: list[list[int]], num_tokens: int) -> list[list[int]]:
        ids = torch.tensor(prompts)
        out = self._model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=num_tokens,
            do_sample=False,
            pad_token_id=0,
        )
        return out[:, ids.shape[1] :].tolist()


if __name__ == "__main__":
    serve(TransformersDriver)
