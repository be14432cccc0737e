"""Small trained tokenizers and the texts to try them on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)

CORPUS = [
    "The quick brown fox jumps over the lazy dog. It's 12345 o'clock, isn't it?",
    "def encode(text: str) -> list[int]:\n    return [1, 22, 333]\n\n\n",
    "user\nHello World<|im_end|> system assistant Count 1, 2, 3\t\t<tool_call>",
    "Zoë → 你好, 世界 👨‍👩‍👧‍👦 🇫🇷 é naïve Straße ﬁ ½ ٣٤ — “quotes” …",
] * 4
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<s>"]
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content']"
    " + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

texts = st.text(
    alphabet=st.one_of(
        st.sampled_from(list("abcdeT 'st<|>_im\n\t 019½你é👍‍➔\u0301ﬁ▁")),
        st.characters(exclude_categories=["Cs"]),
    ),
    max_size=40,
)
"""Random Unicode, with plenty of what tokenizers treat specially."""


@cache
def byte_level(specials: bool = True) -> Tokenizer:
    """Byte-level BPE with single digits: the way of SmolLM2."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=500,
        show_progress=False,
        special_tokens=SPECIALS if specials else [],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    core.train_from_iterator(CORPUS, trainer)
    core.add_tokens([AddedToken("<tool_call>", normalized=False)])
    return core


@cache
def metaspace() -> Tokenizer:
    """BPE over ▁ with byte fallback: the way of Llama 2 and Gemma."""
    core = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    core.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    core.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    core.pre_tokenizer = pre_tokenizers.Split(Regex("(?=▁)"), "isolated")  # else words do not end
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        show_progress=False,
        special_tokens=["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256))],
        limit_alphabet=60,
    )
    core.train_from_iterator(CORPUS, trainer)
    state = json.loads(core.to_str())
    state["pre_tokenizer"] = None
    state["added_tokens"] = [t for t in state["added_tokens"] if not t["content"].startswith("<0x")]
    return Tokenizer.from_str(json.dumps(state))


@cache
def unigram() -> Tokenizer:
    """SentencePiece's unigram model with byte fallback, as tokenizer.json holds it."""
    core = Tokenizer(models.Unigram())
    core.normalizer = normalizers.Replace(" ", "▁")
    core.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    core.decoder = decoders.Metaspace(prepend_scheme="always")
    specials = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256))]
    trainer = trainers.UnigramTrainer(
        vocab_size=500, show_progress=False, special_tokens=specials, unk_token="<unk>"
    )
    core.train_from_iterator(CORPUS, trainer)
    state = json.loads(core.to_str())
    state["model"]["byte_fallback"] = True
    state["added_tokens"] = [t for t in state["added_tokens"] if not t["content"].startswith("<0x")]
    state["decoder"] = {
        "type": "Sequence",
        "decoders": [{"type": "ByteFallback"}, state["decoder"]],
    }
    return Tokenizer.from_str(json.dumps(state))


def save_folder(folder: Path, core: Tokenizer, **config: Any) -> Path:
    """tokenizer.json and tokenizer_config.json, as a model's folder has them."""
    core.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def gguf_metadata(core: Tokenizer, **more: Any) -> dict[str, Any]:
    """What a GGUF file says about a byte-level tokenizer, as `GGUFFile.metadata` has it."""
    state = json.loads(core.to_str())
    vocab: Mapping[str, int] = core.get_vocab(with_added_tokens=True)
    tokens = sorted(vocab, key=vocab.__getitem__)
    types = np.ones(len(tokens), dtype=np.int32)
    for i, token in core.get_added_tokens_decoder().items():
        types[i] = 3 if token.special else 4
    merges = [m if isinstance(m, str) else " ".join(m) for m in state["model"]["merges"]]
    metadata = {
        "model": "gpt2",
        "pre": "smollm",
        "tokens": tokens,
        "token_type": types,
        "merges": merges,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    metadata = {f"tokenizer.ggml.{key}": value for key, value in metadata.items()}
    return {k: v for k, v in (metadata | more).items() if v is not None}
