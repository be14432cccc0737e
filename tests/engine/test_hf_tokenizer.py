from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from tokenizers import AddedToken, Tokenizer, processors
from transformers import PreTrainedTokenizerFast

from octavo.engine.hf_tokenizer import folder_tokenizer
from octavo.errors import ModelError, TokenizerError
from tests.engine.tokenizer_lab import byte_level, metaspace, save_folder, texts, unigram


def copy_of(core: Tokenizer) -> Tokenizer:
    return Tokenizer.from_str(core.to_str())


@pytest.fixture(
    scope="module", params=[byte_level, metaspace, unigram], ids=lambda make: make.__name__
)
def both(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Tokenizer, PreTrainedTokenizerFast]:
    """A folder's tokenizer as we and as transformers load it."""
    folder = tmp_path_factory.mktemp("folder")
    save_folder(folder, request.param(), bos_token="<s>", eos_token="<|im_end|>")
    return folder_tokenizer(folder).core, PreTrainedTokenizerFast.from_pretrained(folder)


@given(text=texts)
def test_encodes_as_transformers(
    both: tuple[Tokenizer, PreTrainedTokenizerFast], text: str
) -> None:
    ours, theirs = both
    ids = ours.encode(text).ids
    assert ids == theirs(text)["input_ids"]
    assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)


def test_named_tokens(tmp_path: Path) -> None:
    save_folder(
        tmp_path,
        byte_level(),
        bos_token={"content": "<s>", "lstrip": False},
        eos_token="<|im_end|>",
        pad_token=None,
        unk_token="",
    )
    (tmp_path / "special_tokens_map.json").write_text(
        json.dumps({"pad_token": "<|endoftext|>", "eos_token": "<|endoftext|>"})
    )
    parts = folder_tokenizer(tmp_path)
    assert parts.bos_token_id == 3
    assert parts.eos_token_ids == [2], "tokenizer_config.json counts more"
    assert parts.special_tokens == {"bos_token": "<s>", "eos_token": "<|im_end|>"}


def test_a_named_token_is_special_even_where_tokenizer_json_forgot(tmp_path: Path) -> None:
    save_folder(tmp_path, byte_level(specials=False), eos_token="<tool_call>", bos_token="<absent>")
    parts = folder_tokenizer(tmp_path)
    (call,) = parts.eos_token_ids
    assert parts.core.get_added_tokens_decoder()[call].special
    assert parts.bos_token_id is None


def test_flags_in_tokenizer_json_are_kept(tmp_path: Path) -> None:
    core = copy_of(byte_level())
    core.add_special_tokens([AddedToken("<mask>", lstrip=True, normalized=False)])
    save_folder(tmp_path, core, mask_token="<mask>", eos_token="<mask>")
    parts = folder_tokenizer(tmp_path)
    (mask,) = parts.eos_token_ids
    assert parts.core.encode("a  <mask>").ids == [*core.encode("a").ids, mask]


def test_truncation_and_padding_of_the_file_do_not_count(tmp_path: Path) -> None:
    core = copy_of(byte_level())
    core.enable_truncation(4)
    core.enable_padding(length=64)
    save_folder(tmp_path, core)
    text = "The quick brown fox jumps"
    assert folder_tokenizer(tmp_path).core.encode(text).ids == byte_level().encode(text).ids


def test_the_post_processor_adds_bos_whatever_the_configuration_says(tmp_path: Path) -> None:
    core = copy_of(byte_level())
    core.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 3)])
    for flag in (True, False):
        save_folder(tmp_path, core, bos_token="<s>", add_bos_token=flag)
        assert folder_tokenizer(tmp_path).core.encode("a").ids[0] == 3
        assert PreTrainedTokenizerFast.from_pretrained(tmp_path)("a")["input_ids"][0] == 3


def test_chat_templates(tmp_path: Path) -> None:
    save_folder(tmp_path, byte_level())
    assert folder_tokenizer(tmp_path).chat_templates == {}
    save_folder(tmp_path, byte_level(), chat_template="A")
    assert folder_tokenizer(tmp_path).chat_templates == {"default": "A"}
    named = [{"name": "default", "template": "A"}, {"name": "tool_use", "template": "B"}]
    save_folder(tmp_path, byte_level(), chat_template=named)
    assert folder_tokenizer(tmp_path).chat_templates == {"default": "A", "tool_use": "B"}
    (tmp_path / "chat_template.jinja").write_text("C")
    assert folder_tokenizer(tmp_path).chat_templates == {"default": "C"}


@pytest.mark.parametrize(
    ("files", "error", "message"),
    [
        ({}, TokenizerError, "has no tokenizer.json$"),
        ({"tokenizer.model": ""}, TokenizerError, "convert tokenizer.model with transformers"),
        ({"tokenizer.json": "{}"}, TokenizerError, "cannot be used"),
        ({"tokenizer.json": "[" * 10**5}, TokenizerError, "cannot be used"),
        ({"tokenizer_config.json": "{"}, ModelError, "not valid JSON"),
        ({"tokenizer_config.json": '{"chat_template": 5}'}, TokenizerError, "chat_template=5"),
        ({"tokenizer_config.json": '{"chat_template": [{}]}'}, TokenizerError, "chat_template="),
    ],
)
def test_faults(
    files: dict[str, str], error: type[Exception], message: str, tmp_path: Path
) -> None:
    if "tokenizer_config.json" in files:
        save_folder(tmp_path, byte_level())
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(error, match=message):
        folder_tokenizer(tmp_path)
