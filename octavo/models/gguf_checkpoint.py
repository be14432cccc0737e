"""A GGUF file as a checkpoint: Hugging Face names and values, rows in Hugging Face's order."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from octavo.contracts.tensor import DType, HostTensor
from octavo.models.gguf import GGUFFile
from octavo.models.gguf_config import gguf_architecture
from octavo.models.gguf_names import hf_name, unpermute_rows

_Q_OR_K = re.compile(r"model\.layers\.\d+\.self_attn\.([qk])_proj\.(?:weight|bias)")


class GGUFCheckpoint:
    """The weights of a GGUF file.

    Args:
        config: of the same file (gguf_config), for the numbers of heads.
    """

    def __init__(self, file: GGUFFile, config: dict[str, Any]) -> None:
        self._file = file
        self._architecture = gguf_architecture(file)
        self._num_heads = {"q": config["num_attention_heads"], "k": config["num_key_value_heads"]}

    @property
    def dtype(self) -> DType:
        """The type that most elements are stored in."""
        return self._file.main_dtype()

    def weights(self) -> Iterator[tuple[str, HostTensor]]:
        """All tensors but known extras. Types without a `DType` are dequantized when they come."""
        pages = self._file.page_releaser()
        for stored_name in self._file.tensors:
            name = hf_name(stored_name, self._architecture.block_names)
            if name is None:
                continue
            tensor = self._file.tensor(stored_name)
            match = _Q_OR_K.fullmatch(name)
            if match and self._architecture.permuted_qk:
                tensor = unpermute_rows(tensor, self._num_heads[match[1]])
            if self._architecture.norm_offset and name.endswith("norm.weight"):
                tensor = HostTensor.of(tensor.to_float32() - self._architecture.norm_offset)
            yield name, tensor
            pages.passed(tensor.data.nbytes)
