"""Tokenizers from one format into the other: the same ids, or a refusal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers
from hypothesis import given
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

from octavo.config.model import ConfigReader
from octavo.contracts.tensor import DType
from octavo.engine.gguf_tokenizer import PRE_TOKENIZERS, gguf_tokenizer
from octavo.engine.tokenizer import load_tokenizer
from octavo.engine.tokenizer_export import folder_files, gguf_metadata
from octavo.errors import TokenizerError
from octavo.models.files import ModelFiles
from tests.engine import tokenizer_lab as lab

NAMES = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "unk_token": "<|endoftext|>"}


def files_of(path: Path, metadata: Any = None, **changes: Any) -> ModelFiles:
    values: dict[str, Any] = {"vocab_size": 100, "max_position_embeddings": 77}
    return ModelFiles(
        name="m",
        path=path,
        config=ConfigReader(values, "config.json"),
        raw_config=values,
        checkpoint_dtype=DType.F32,
        generation_config=changes,
        gguf_metadata=metadata,
    )


def folder_of(folder: Path, core: Tokenizer, **config: Any) -> ModelFiles:
    return files_of(lab.save_folder(folder, core, **config))


class TestIntoAFolder:
    def test_transformers_reads_the_same(self, tmp_path: Path) -> None:
        metadata = lab.gguf_metadata(
            lab.byte_level(),
            **{"tokenizer.chat_template": lab.CHATML, "tokenizer.ggml.padding_token_id": 0},
        )
        files = files_of(tmp_path / "m.gguf", metadata)
        for name, content in folder_files(files).items():
            (tmp_path / name).write_bytes(content)
        (tmp_path / "config.json").write_text('{"model_type": "llama"}')
        theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
        ours = load_tokenizer(files)
        again = load_tokenizer(files_of(tmp_path))
        for text in [*lab.CORPUS, " a\n\n1234", "<|im_end|><tool_call>x", "👍🏽é"]:
            ids = ours.encode(text)
            assert theirs(text).input_ids == again.encode(text) == ids, text
            assert theirs.decode(ids) == ours.decode(ids, skip_special_tokens=False)
        messages = [{"role": "user", "content": "Hi"}]
        rendered = theirs.apply_chat_template(messages, add_generation_prompt=True)
        assert rendered["input_ids"] == ours.apply_chat_template(messages)
        assert again.apply_chat_template(messages) == ours.apply_chat_template(messages)
        assert (theirs.bos_token_id, theirs.eos_token_id, theirs.pad_token_id) == (1, 2, 0)
        assert theirs.model_max_length == 77
        assert again.eos_token_ids == ours.eos_token_ids

    def test_bos_and_several_templates(self, tmp_path: Path) -> None:
        metadata = lab.gguf_metadata(
            lab.byte_level(),
            **{
                "tokenizer.ggml.add_bos_token": True,
                "tokenizer.chat_template": "A",
                "tokenizer.chat_template.tool_use": "B",
            },
        )
        files = folder_files(files_of(tmp_path / "m.gguf", metadata))
        for name, content in files.items():
            (tmp_path / name).write_bytes(content)
        again = load_tokenizer(files_of(tmp_path))
        assert again.encode("x")[0] == 1
        templates = json.loads(files["tokenizer_config.json"])["chat_template"]
        assert {t["name"]: t["template"] for t in templates} == {"default": "A", "tool_use": "B"}

    def test_a_folder_s_own_files_stay_as_they_are(self, tmp_path: Path) -> None:
        files = folder_of(tmp_path, lab.byte_level(), **NAMES)
        (tmp_path / "chat_template.jinja").write_text("{# é #}", "utf-8")
        (tmp_path / "notes.txt").write_text("mine")
        found = folder_files(files)
        names = {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja"}
        assert set(found) == names
        assert all((tmp_path / name).read_bytes() == content for name, content in found.items())

    def test_none_there(self, tmp_path: Path) -> None:
        with pytest.raises(TokenizerError, match=r"no tokenizer\.json"):
            folder_files(files_of(tmp_path))


class TestIntoGGUF:
    def test_a_file_s_own_metadata_stays_as_it_is(self, tmp_path: Path) -> None:
        metadata = lab.gguf_metadata(lab.byte_level())
        found = gguf_metadata(files_of(tmp_path / "m.gguf", metadata | {"general.name": "x"}))
        assert found == metadata

    def test_byte_level(self, tmp_path: Path) -> None:
        core = lab.byte_level()
        files = folder_of(tmp_path, core, chat_template=lab.CHATML, **NAMES)
        found = gguf_metadata(files)
        expected = lab.gguf_metadata(core)
        assert found["tokenizer.ggml.pre"] == "smollm"
        assert np.array_equal(
            found["tokenizer.ggml.token_type"], expected["tokenizer.ggml.token_type"]
        )
        for key in ("model", "tokens", "merges", "bos_token_id", "eos_token_id"):
            assert found[f"tokenizer.ggml.{key}"] == expected[f"tokenizer.ggml.{key}"]
        assert found["tokenizer.ggml.unknown_token_id"] == 0
        assert found["tokenizer.ggml.add_bos_token"] is False
        assert found["tokenizer.chat_template"] == lab.CHATML
        theirs, ours = gguf_tokenizer(found, "x"), load_tokenizer(files)

        @given(lab.texts)
        def same(text: str) -> None:
            assert theirs.core.encode(text).ids == ours.encode(text)

        same()

    def test_spaced(self, tmp_path: Path) -> None:
        core = Tokenizer.from_str(lab.metaspace().to_str())
        core.add_special_tokens(["<s>", "</s>"])
        core.post_processor = processors.TemplateProcessing(
            single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
        )
        files = folder_of(tmp_path, core, bos_token="<s>", eos_token="</s>", unk_token="<unk>")
        found = gguf_metadata(files)
        assert found["tokenizer.ggml.model"] == "llama"
        assert found["tokenizer.ggml.add_space_prefix"] is True
        assert found["tokenizer.ggml.add_bos_token"] is True
        assert found["tokenizer.ggml.add_eos_token"] is True
        types = found["tokenizer.ggml.token_type"].tolist()
        assert types[:4] == [3, 3, 3, 6]  # specials, then <0x00>
        again = gguf_tokenizer(found, "x")
        for text in [*lab.CORPUS, " a", "", "\x07é"]:
            assert again.core.encode(text).ids == core.encode(text).ids

    def test_without_a_space_before(self, tmp_path: Path) -> None:
        core = Tokenizer.from_str(lab.metaspace().to_str())
        core.normalizer = normalizers.Replace(" ", "▁")
        core.decoder = decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
        )
        files = folder_of(tmp_path, core, unk_token="<unk>")
        assert gguf_metadata(files)["tokenizer.ggml.add_space_prefix"] is False

    def test_ids_without_a_token(self, tmp_path: Path) -> None:
        files = folder_of(tmp_path, lab.byte_level(), **NAMES)
        size = lab.byte_level().get_vocab_size() + 3
        files.raw_config["vocab_size"] = size
        found = gguf_metadata(files)
        assert found["tokenizer.ggml.tokens"][-1] == f"[PAD{size - 1}]"
        assert found["tokenizer.ggml.token_type"].tolist()[-4:] == [4, 5, 5, 5]

    def test_all_that_ends_a_text(self, tmp_path: Path) -> None:
        lab.save_folder(tmp_path, lab.byte_level(), **NAMES)
        found = gguf_metadata(files_of(tmp_path, eos_token_id=[2, 0, 3, "x", 10**9]))
        keys = ("eos", "eot", "eom")
        assert [found[f"tokenizer.ggml.{key}_token_id"] for key in keys] == [2, 0, 3]
        found = gguf_metadata(files_of(tmp_path, eos_token_id=0))
        assert found["tokenizer.ggml.eot_token_id"] == 0

    @pytest.mark.parametrize("name", ["gpt-2", "llama-bpe", "qwen2", "smollm", "tekken", "default"])
    def test_every_way_of_cutting_is_known_again(self, name: str, tmp_path: Path) -> None:
        metadata = lab.gguf_metadata(lab.byte_level(), **{"tokenizer.ggml.pre": name})
        parts = gguf_tokenizer(metadata, "x")
        files = folder_of(tmp_path, parts.core, **NAMES)
        found = gguf_metadata(files)["tokenizer.ggml.pre"]
        assert PRE_TOKENIZERS[found].patterns == PRE_TOKENIZERS[name].patterns

    def test_what_models_write_is_known(self, tmp_path: Path) -> None:
        """ByteLevel alone is GPT-2's way; Removed and inverted is another word for isolated."""
        core = Tokenizer.from_str(lab.byte_level().to_str())
        core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        assert gguf_metadata(folder_of(tmp_path, core))["tokenizer.ggml.pre"] == "gpt-2"
        (pattern,) = PRE_TOKENIZERS["qwen2"].patterns
        core.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(pattern), "removed", invert=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
        assert gguf_metadata(folder_of(tmp_path, core))["tokenizer.ggml.pre"] == "qwen2"


class TestRefusals:
    def refuse(self, folder: Path, core: Tokenizer, words: str, **config: Any) -> None:
        with pytest.raises(TokenizerError, match=words):
            gguf_metadata(folder_of(folder, core, **config))

    def test_other_models(self, tmp_path: Path) -> None:
        self.refuse(tmp_path, Tokenizer(models.WordLevel({"a": 0}, "a")), "'WordLevel'")
        self.refuse(tmp_path, Tokenizer(models.Unigram([("a", 0.0)], 0)), "'Unigram'")

    def test_other_ways_of_cutting(self, tmp_path: Path) -> None:
        core = Tokenizer.from_str(lab.byte_level().to_str())
        for pre in (
            pre_tokenizers.Split(Regex("x+"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ):
            core.pre_tokenizer = pre
            self.refuse(tmp_path, core, "has no name for how")
        for pre in (
            pre_tokenizers.Whitespace(),
            pre_tokenizers.ByteLevel(add_prefix_space=True),
            pre_tokenizers.Digits(individual_digits=False),
            pre_tokenizers.Split(" ", "isolated"),
            pre_tokenizers.Split(Regex(" "), "removed"),
        ):
            core.pre_tokenizer = pre
            self.refuse(tmp_path, core, "cannot be written")

    def test_what_gguf_would_read_otherwise(self, tmp_path: Path) -> None:
        core = Tokenizer.from_str(lab.byte_level().to_str())
        core.normalizer = normalizers.Lowercase()
        self.refuse(tmp_path, core, "would have other ids")

    def test_more_than_bos_and_eos(self, tmp_path: Path) -> None:
        core = Tokenizer.from_str(lab.byte_level().to_str())
        core.add_special_tokens([AddedToken("<x>")])
        core.post_processor = processors.TemplateProcessing(
            single="<x> $A", special_tokens=[("<x>", core.token_to_id("<x>"))]
        )
        self.refuse(tmp_path, core, "more than BOS and EOS", **NAMES)
