"""A tokenizer from a folder: tokenizer.json, tokenizer_config.json, special_tokens_map.json."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer

from octavo.engine.tokenizer_parts import TokenizerParts
from octavo.errors import TokenizerError, shown
from octavo.models.mapping import read_json_object, read_text

_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token")


def folder_tokenizer(folder: Path) -> TokenizerParts:
    """The tokenizer of a Hugging Face folder. Whether BOS and EOS are added is tokenizer.json's
    word alone (its post-processor), as in transformers 5: `add_bos_token` does not count.

    Raises:
        TokenizerError: no tokenizer.json, or one that cannot be read.
        ModelError: another of the files is broken.
    """
    path = folder / "tokenizer.json"
    if not path.is_file():
        other = next((n for n in ("tokenizer.model", "vocab.json") if (folder / n).is_file()), None)
        hint = f"; convert {other} with transformers (save_pretrained)" if other else ""
        raise TokenizerError(f"{folder} has no tokenizer.json{hint}")
    try:
        core = Tokenizer.from_str(read_text(path))
    except Exception as error:  # the library raises plain Exception
        raise TokenizerError(f"{path} cannot be used: {str(error)[:500]}") from error
    core.no_padding()
    core.no_truncation()
    config = _optional(folder / "tokenizer_config.json")
    special = _special_tokens({**_optional(folder / "special_tokens_map.json"), **config})
    ids = {name: core.token_to_id(token.content) for name, token in special.items()}
    known = {t.content for t in core.get_added_tokens_decoder().values() if t.special}
    core.add_special_tokens(
        [t for name, t in special.items() if ids[name] is not None and t.content not in known]
    )
    return TokenizerParts(
        core=core,
        bos_token_id=ids.get("bos_token"),
        eos_token_ids=[i for i in (ids.get("eos_token"),) if i is not None],
        special_tokens={name: token.content for name, token in special.items()},
        chat_templates=_chat_templates(folder, config),
    )


def _optional(path: Path) -> dict[str, Any]:
    return read_json_object(path) if path.is_file() else {}


def _special_tokens(config: Mapping[str, Any]) -> dict[str, AddedToken]:
    """Named special tokens; each is a string, or an object with its `content`."""
    tokens = {}
    for name in _NAMES:
        value = config.get(name)
        options = value if isinstance(value, Mapping) else {"content": value}
        if isinstance(options.get("content"), str) and options["content"]:
            flags = {f: options.get(f) is True for f in ("lstrip", "rstrip", "single_word")}
            tokens[name] = AddedToken(options["content"], normalized=False, **flags)
    return tokens


def _chat_templates(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """From chat_template.jinja, or tokenizer_config.json: one template, or a list of named ones."""
    file = folder / "chat_template.jinja"
    if file.is_file():
        return {"default": read_text(file)}
    value = config.get("chat_template")
    if value is None:
        return {}
    if isinstance(value, str):
        return {"default": value}
    try:
        return {str(entry["name"]): str(entry["template"]) for entry in value}
    except (TypeError, KeyError):
        raise TokenizerError(
            f"{folder / 'tokenizer_config.json'}: chat_template={shown(value)} must be a text or a "
            "list of objects with name and template"
        ) from None
