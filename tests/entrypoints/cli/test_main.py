"""The command line: what it prints, where, and with which exit status."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from octavo.config.engine import EngineConfig
from octavo.engine.llm_engine import LLMEngine
from tests.engine.fakes import ByteTokenizer, fake_engine
from tests.entrypoints.cli.command import Command

ANSWER = " Paris. ☕"


class Cli(Command):
    """Runs a command line over a fake engine.

    Attributes:
        configs: the configurations that engines were asked for.
    """

    def __init__(self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(capsys, monkeypatch)
        self.configs: list[EngineConfig] = []
        script = {
            tuple(b"France is"): list(ANSWER.encode()),
            (257, *b"user\nFrance?", 258, 257, *b"assistant\n"): list(ANSWER.encode()),
        }
        self.executor: dict[str, Any] = {"script": script, "max_model_len": 2048, "num_blocks": 600}

        def from_config(config: EngineConfig, hooks: Any = ()) -> LLMEngine:
            self.configs.append(config)
            options = {"num_blocks": config.cache.num_gpu_blocks_override or 600}
            return fake_engine(executor={**self.executor, **options}, hooks=hooks)

        monkeypatch.setattr(LLMEngine, "from_config", from_config)
        monkeypatch.setattr("octavo.models.hub.locate_model", lambda *_, **__: Path("here"))


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    return Cli(capsys, monkeypatch)


def assert_one_line(err: str, *parts: str) -> None:
    assert err.startswith("octavo: ")
    assert err.count("\n") == 1
    assert "Traceback" not in err
    for part in parts:
        assert part in err


class TestGenerate:
    def test_one_prompt_prints_its_text_alone(self, cli: Cli) -> None:
        assert cli("generate", "France is", "--temperature", "0") == (0, ANSWER + "\n", "")

    def test_several_prompts(self, cli: Cli) -> None:
        status, out, err = cli("generate", "France is", "other", "--max-tokens", "9")
        assert (status, err) == (0, "")
        assert out.startswith(f"> France is\n{ANSWER.strip()[:6]}")
        assert "\n\n> other\n" in out

    def test_several_completions(self, cli: Cli) -> None:
        _, out, _ = cli("generate", "France is", "--n", "2")
        assert out.count(ANSWER.strip()) == 2

    def test_chat(self, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
        assert cli("generate", "--chat", "France?")[1] == ANSWER + "\n"
        assert cli("generate", "France?")[1] != ANSWER + "\n"
        monkeypatch.setattr(ByteTokenizer, "has_chat_template", True)
        assert cli("generate", "France?")[1] == ANSWER + "\n"
        assert cli("generate", "--no-chat", "France is")[1] == ANSWER + "\n"
        status, _, err = cli("generate", "France?", "")
        assert status == 1
        assert_one_line(err, "empty")

    def test_json(self, cli: Cli) -> None:
        arguments = ("generate", "France is", "--json", "--logprobs", "1", "--max-tokens", "3")
        status, out, _ = cli(*arguments)
        (answer,) = json.loads(out)
        assert status == 0
        assert (answer["prompt"], answer["prompt_tokens"]) == ("France is", 9)
        (completion,) = answer["outputs"]
        assert completion["text"] == " Pa"
        assert completion["token_ids"] == list(b" Pa")
        assert completion["finish_reason"] == "length"
        assert [next(iter(entry)) for entry in completion["logprobs"]] == ["32", "80", "97"]

    def test_sampling_options_reach_the_request(self, cli: Cli) -> None:
        arguments = ("--stop", "xyz", "--stop", "is.", "--include-stop-str-in-output")
        _, out, _ = cli("generate", "France is", *arguments)
        assert out == " Paris.\n"

    def test_engine_options_reach_the_engine(self, cli: Cli) -> None:
        cli(
            *("generate", "Hi", "--model", "m", "--dtype", "bfloat16", "--max-num-seqs", "3"),
            *("--no-enable-prefix-caching", "--gpu-memory-utilization", "0.25", "--seed", "5"),
        )
        assert cli.configs == [
            EngineConfig.from_flat(
                model="m",
                dtype="bfloat16",
                max_num_seqs=3,
                enable_prefix_caching=False,
                gpu_memory_utilization=0.25,
                seed=5,
            )
        ]

    @pytest.mark.parametrize(
        ("arguments", "parts"),
        [
            (("x", "--temperature", "nan"), ("temperature", "nan")),
            (("x", "--temperature", "-1"), ("temperature", "-1")),
            (("x", "--temperature", "inf"), ("temperature", "inf")),
            (("x", "--n", "100000000"), ("n=100000000", "128")),
            (("x", "--n", "0"), ("n=0",)),
            (("x", "--max-tokens", "0"), ("max_tokens=0",)),
            (("x", "--top-p", "0"), ("top_p",)),
            (("x", "--stop", ""), ("stop", "empty")),
            (("x", "--logprobs", "-2"), ("logprobs",)),
            (("x", "--stop-token-ids", "-1"), ("stop_token_ids", "-1")),
            (("x", "--dtype", "float8"), ("dtype", "float8", "bfloat16")),
            (("x", "--max-num-seqs", "0"), ("max_num_seqs=0",)),
            (("x", "--gpu-memory-utilization", "nan"), ("gpu_memory_utilization",)),
            (("",), ("empty",)),
            (("x", ""), ("prompts[1]", "empty")),
            (("x" * 3000,), ("3000", "2048")),
            (("x", "--max-tokens", "5000"), ("max_tokens=5000", "2048")),
        ],
    )
    def test_wrong_values(
        self, cli: Cli, arguments: tuple[str, ...], parts: tuple[str, ...]
    ) -> None:
        status, out, err = cli("generate", *arguments)
        assert (status, out) == (1, "")
        assert_one_line(err, *parts)

    def test_wrong_sampling_is_told_before_the_model_is_loaded(self, cli: Cli) -> None:
        assert cli("generate", "x", "--temperature", "nan")[0] == 1
        assert cli.configs == []

    def test_a_request_that_fails_while_running(self, cli: Cli) -> None:
        cli.executor["fail"] = {1: RuntimeError("boom")}
        for arguments in (("a",), ("a", "b")):
            status, _, err = cli("generate", *arguments)
            assert status == 1
            assert "boom" in err

    def test_an_internal_error_is_one_line(self, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
        def from_config(config: EngineConfig) -> LLMEngine:
            raise KeyError("lost\nand found")

        monkeypatch.setattr(LLMEngine, "from_config", from_config)
        status, _, err = cli("generate", "x")
        assert status == 1
        assert_one_line(err, "internal error", "KeyError")

    def test_ctrl_c(self, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
        def from_config(config: EngineConfig) -> LLMEngine:
            raise KeyboardInterrupt

        monkeypatch.setattr(LLMEngine, "from_config", from_config)
        status, _, err = cli("generate", "x")
        assert status == 130
        assert "Traceback" not in err


class TestUsage:
    @pytest.mark.parametrize(
        ("arguments", "part"),
        [
            (("generate",), "PROMPT"),
            (("generate", "x", "--temperature", "hot"), "--temperature"),
            (("generate", "x", "--no-such-option"), "--no-such-option"),
            (("frobnicate",), "frobnicate"),
            (("bench", "nothing"), "nothing"),
            (("bench", "latency", "--repeats", "0"), "--repeats"),
            (("pull",), "model"),
        ],
    )
    def test_wrong_command_lines(self, cli: Cli, arguments: tuple[str, ...], part: str) -> None:
        status, out, err = cli(*arguments)
        assert (status, out) == (2, "")
        assert part.lower() in err.lower()
        assert "Traceback" not in err

    def test_version(self, cli: Cli) -> None:
        import octavo

        assert cli("--version") == (0, f"octavo {octavo.__version__}\n", "")

    def test_help_names_every_command_and_option(self, cli: Cli) -> None:
        status, out, _ = cli("--help")
        assert status == 0
        for command in ("generate", "pull", "bench", "serve"):
            assert command in out
        _, out, _ = cli("generate", "--help")
        for name in ("--temperature", "--max-num-seqs", "--dtype", "token budget of a step"):
            assert name in out


class TestPull:
    @pytest.fixture(autouse=True)
    def _hub(self, cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        self.calls: list[tuple[str, Any]] = []

        def locate_model(
            model: str, *, revision: Any = None, weights: bool = True, progress: Any = None
        ) -> Path:
            self.calls.append((model, revision))
            if progress is not None:
                progress(10, None)
                progress(20, 20)
            return tmp_path / model

        monkeypatch.setattr("octavo.models.hub.locate_model", locate_model)

    def test_prints_where_it_is(self, cli: Cli, tmp_path: Path) -> None:
        assert cli("pull", "m", "--revision", "r") == (0, f"{tmp_path / 'm'}\n", "")
        assert self.calls == [("m", "r")]

    def test_progress_on_a_terminal(
        self, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("sys.stderr.isatty", lambda: True)
        monkeypatch.setenv("TERM", "xterm")
        status, out, err = cli("pull", "m")
        assert (status, out) == (0, f"{tmp_path / 'm'}\n")
        assert "20/20 bytes" in err


class TestBench:
    @pytest.mark.parametrize(
        ("arguments", "keys"),
        [
            (("throughput", "--num-prompts", "4"), {"output_tokens_per_second", "steps"}),
            (("latency", "--input-len", "8", "--repeats", "1"), {"latency"}),
            (
                ("paging", "--num-requests", "8", "--output-len", "8"),
                {"kv_waste_blocks_per_request_max", "prefix_tokens_computed"},
            ),
        ],
    )
    def test_table_json_and_file(
        self, cli: Cli, tmp_path: Path, arguments: tuple[str, ...], keys: set[str]
    ) -> None:
        path = tmp_path / "report.json"
        status, out, err = cli("bench", *arguments, "--output", str(path))
        assert (status, err) == (0, "")
        assert all(key in out for key in keys)
        assert keys <= set(json.loads(path.read_text())["results"])
        status, out, _ = cli("bench", *arguments, "--json")
        assert keys <= set(json.loads(out)["results"])

    def test_unwritable_file(self, cli: Cli, tmp_path: Path) -> None:
        path = tmp_path / "no" / "report.json"
        status, _, err = cli("bench", "throughput", "--num-prompts", "1", "--output", str(path))
        assert status == 1
        assert_one_line(err, "report.json")

    def test_a_workload_that_does_not_fit(self, cli: Cli) -> None:
        status, _, err = cli("bench", "throughput", "--input-len", "5000")
        assert status == 1
        assert_one_line(err, "max_model_len=2048")


def test_byte_tokenizer_is_what_the_script_assumes() -> None:
    assert ByteTokenizer().decode(list(ANSWER.encode())) == ANSWER
