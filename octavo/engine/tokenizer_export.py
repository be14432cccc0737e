"""A model's tokenizer in the form of the other format: tokenizer.json for GGUF, and back.

Into GGUF only what `gguf_tokenizer` reads back the same is written: a sample of texts must have the
same ids, or the tokenizer is refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from octavo.engine.gguf_tokenizer import PRE_TOKENIZERS, PreTokenizer, gguf_tokenizer
from octavo.engine.hf_tokenizer import folder_tokenizer
from octavo.engine.tokenizer_config import tokenizer_config
from octavo.engine.tokenizer_parts import TokenizerParts
from octavo.errors import TokenizerError, shown
from octavo.log import get_logger
from octavo.models.files import ModelFiles

logger = get_logger(__name__)

_FOLDER_FILES = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"),
    *("chat_template.jinja", "chat_template.json"),
)
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = 1, 2, 3, 4, 5, 6
_GPT2_SPLIT = PRE_TOKENIZERS["gpt-2"].patterns
_DIGIT_SPLIT = PRE_TOKENIZERS["smollm"].patterns[:1]
_SPACE = "▁"
_SAMPLES = (
    *("Hello, world!", "  two  spaces\n\n\nlines\t\ttabs \r\n end  ", "I'm YOU'RE they'll we'd"),
    *("1234567890 3.14159 x2y 007", "don't-stop_believing(foo->bar[0]);", "Größe naïve café Ωmega"),
    *("日本語のテキスト、中文字符。한국어", "привет مرحبا שלום नमस्ते", "😀👍🏽 👩‍👩‍👧 ☕…"),
    *("<b>&amp;</b> http://a.b/c?d=e#f", "a", " ", "", "\n", "¡™£¢∞§¶•ªº", "AbCdE fGhIj KLM"),
    "def f(x):\n    return x ** 2  # squares\n",
)


def folder_files(files: ModelFiles) -> dict[str, bytes]:
    """File name → content of a tokenizer for a Hugging Face folder: a folder's own files as they
    are, a GGUF file's tokenizer as tokenizer.json and tokenizer_config.json.

    Raises:
        TokenizerError: there is none, or it is broken.
    """
    if files.gguf_metadata is None:
        folder_tokenizer(files.path)  # it must be one that can be used
        paths = [files.path / name for name in _FOLDER_FILES]
        return {p.name: p.read_bytes() for p in paths if p.is_file()}
    parts = gguf_tokenizer(files.gguf_metadata, str(files.path))
    config = {
        "clean_up_tokenization_spaces": False,
        "model_max_length": files.config.int("max_position_embeddings", None),
        **tokenizer_config(parts.special_tokens, parts.chat_templates),
    }
    content = json.dumps(
        {k: v for k, v in config.items() if v is not None}, indent=2, ensure_ascii=False
    )
    return {
        "tokenizer.json": parts.core.to_str(pretty=False).encode(),
        "tokenizer_config.json": f"{content}\n".encode(),
    }


def gguf_metadata(files: ModelFiles) -> dict[str, Any]:
    """The metadata `tokenizer.*` of a GGUF file for a model: a GGUF file's own as it is, a folder's
    as llama.cpp would write it.

    Raises:
        TokenizerError: there is no tokenizer, it is broken, or GGUF has no words for it.
    """
    if files.gguf_metadata is not None:
        return {k: v for k, v in files.gguf_metadata.items() if k.startswith("tokenizer.")}
    where = str(files.path / "tokenizer.json")
    parts = folder_tokenizer(files.path)
    metadata = _convert(parts, files, where)
    _check_same(parts.core, gguf_tokenizer(metadata, where).core, where)
    return metadata


def _convert(parts: TokenizerParts, files: ModelFiles, where: str) -> dict[str, Any]:
    state = json.loads(parts.core.to_str())
    model = state["model"]
    if model.get("type") != "BPE":
        raise TokenizerError(
            f"{where}: a model of type {shown(model.get('type'))} cannot be written as GGUF; only "
            "BPE can. The format hf takes every tokenizer"
        )
    is_spaced = bool(model.get("byte_fallback"))
    tokens, types = _vocabulary(parts.core, model, files, is_spaced=is_spaced)
    metadata: dict[str, Any] = {
        "tokenizer.ggml.model": "llama" if is_spaced else "gpt2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": np.array(types, np.int32),
    }
    pairs = [tuple(m.split(" ", 1)) if isinstance(m, str) else tuple(m) for m in model["merges"]]
    if is_spaced:
        metadata["tokenizer.ggml.scores"] = _scores(tokens, pairs)
        metadata["tokenizer.ggml.add_space_prefix"] = _adds_space(parts.core)
    else:
        metadata["tokenizer.ggml.pre"] = _pre_name(state, where)
        if pairs:
            metadata["tokenizer.ggml.merges"] = [" ".join(pair) for pair in pairs]
    return metadata | _special_ids(parts, files, where) | _templates(parts.chat_templates)


def _vocabulary(
    core: Tokenizer, model: Mapping[str, Any], files: ModelFiles, *, is_spaced: bool
) -> tuple[list[str], list[int]]:
    """Spelling and type of every id of the model; ids without a token are named [PAD…], as
    llama.cpp does."""
    vocab = core.get_vocab(with_added_tokens=True)
    added = core.get_added_tokens_decoder()
    size = max(max(vocab.values(), default=-1) + 1, files.config.int("vocab_size"))
    tokens = [f"[PAD{i}]" for i in range(size)]
    types = [_UNUSED] * size
    for token, i in vocab.items():
        tokens[i], types[i] = token, _NORMAL
        if i in added:
            types[i] = _CONTROL if added[i].special else _USER_DEFINED
        elif token == model.get("unk_token"):
            types[i] = _UNKNOWN
        elif is_spaced and len(token) == 6 and token.startswith("<0x"):
            types[i] = _BYTE
    return tokens, types


def _scores(tokens: list[str], pairs: list[tuple[str, ...]]) -> np.ndarray:
    """The earlier a token is merged, the higher its score."""
    ranks: dict[str, int] = {}
    for rank, pair in enumerate(pairs):
        ranks.setdefault("".join(pair), rank)
    last = len(pairs)
    return np.array([-float(ranks.get(token, last)) for token in tokens], np.float32)


def _adds_space(core: Tokenizer) -> bool:
    ids = core.encode("a", add_special_tokens=False).ids
    return bool(ids) and str(core.id_to_token(ids[0])).startswith(_SPACE)


def _pre_name(state: Mapping[str, Any], where: str) -> str:
    """GGUF's name for how a text is cut."""
    pre = state.get("pre_tokenizer") or {}
    parts = pre.get("pretokenizers", [pre])
    patterns = tuple(pattern for part in parts for pattern in _patterns(part, where))
    ignore_merges = bool(state["model"].get("ignore_merges"))
    for name, known in PRE_TOKENIZERS.items():
        if _is_same(known, patterns, ignore_merges):
            return name
    raise TokenizerError(
        f"{where}: GGUF has no name for how this tokenizer cuts texts ({shown(patterns)}); the "
        "format hf takes every tokenizer"
    )


def _is_same(known: PreTokenizer, patterns: tuple[str, ...], ignore_merges: bool) -> bool:
    return (known.patterns, known.ignore_merges) == (patterns, ignore_merges)


def _patterns(part: Mapping[str, Any], where: str) -> tuple[str, ...]:
    """The patterns of one step, each of which isolates what it matches."""
    kind = part.get("type")
    if kind == "ByteLevel" and not part.get("add_prefix_space"):
        return _GPT2_SPLIT if part.get("use_regex", True) else ()
    if kind == "Digits" and part.get("individual_digits"):
        return _DIGIT_SPLIT
    if kind == "Split" and (pattern := part["pattern"].get("Regex")):
        isolates = part["behavior"] == "Isolated"
        if isolates or (part["behavior"] == "Removed" and part["invert"]):
            return (pattern,)
    raise TokenizerError(f"{where}: the pre-tokenizer {shown(kind)} cannot be written as GGUF")


def _special_ids(parts: TokenizerParts, files: ModelFiles, where: str) -> dict[str, Any]:
    core = parts.core
    ids: dict[str, Any] = {}
    for name, stored in {"bos": "bos", "unk": "unknown", "pad": "padding"}.items():
        token = parts.special_tokens.get(f"{name}_token")
        if token is not None and (i := core.token_to_id(token)) is not None:
            ids[f"{stored}_token_id"] = i
    for name, i in zip(("eos", "eot", "eom"), ends := _ends(parts, files)):
        ids[f"{name}_token_id"] = i
    if len(ends) > 3:
        logger.warning("%s: GGUF has room for 3 ids that end a text, not %d", where, len(ends))
    with_special = core.encode("a", add_special_tokens=True).ids
    plain = core.encode("a", add_special_tokens=False).ids
    ids["add_bos_token"] = adds_bos = with_special[:1] == [parts.bos_token_id]
    rest = with_special[adds_bos:]
    ids["add_eos_token"] = rest[:-1] == plain and rest[-1:] == ends[:1]
    if rest not in (plain, plain + ends[:1]):
        raise TokenizerError(f"{where}: it adds more than BOS and EOS to a text, which GGUF cannot")
    return {f"tokenizer.ggml.{key}": value for key, value in ids.items()}


def _ends(parts: TokenizerParts, files: ModelFiles) -> list[int]:
    """Ids that end a text: the tokenizer's, then those of the generation config."""
    more = files.generation_config.get("eos_token_id")
    more = more if isinstance(more, list) else [more]
    known = parts.core.get_vocab_size(with_added_tokens=True)
    more = [i for i in more if type(i) is int and 0 <= i < known]
    return list(dict.fromkeys([*parts.eos_token_ids, *more]))


def _templates(templates: Mapping[str, str]) -> dict[str, Any]:
    keys: dict[str, Any] = {
        "tokenizer.chat_template" + ("" if name == "default" else f".{name}"): text
        for name, text in templates.items()
    }
    if others := [name for name in templates if name != "default"]:
        keys["tokenizer.chat_templates"] = others
    return keys


def _check_same(source: Tokenizer, written: Tokenizer, where: str) -> None:
    """Raise TokenizerError unless both cut the sample texts alike."""
    for text in _SAMPLES:
        for special in (False, True):
            expected = source.encode(text, add_special_tokens=special).ids
            if written.encode(text, add_special_tokens=special).ids != expected:
                raise TokenizerError(
                    f"{where}: in GGUF {shown(text)} would have other ids; the format hf takes "
                    "every tokenizer"
                )
