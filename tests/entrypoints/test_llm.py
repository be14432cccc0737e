"""LLM as its users see it, over a fake executor."""

from __future__ import annotations

import signal
import sys
import threading
from typing import Any

import pytest

from octavo.contracts.sampling_params import RequestOutputKind, SamplingParams
from octavo.contracts.step import SchedulerOutput
from octavo.engine.tokenizer import RenderedChat
from octavo.entrypoints.llm import LLM
from octavo.errors import (
    ChatTemplateError,
    ConfigError,
    EngineDeadError,
    PromptTooLongError,
    RequestError,
)
from tests.engine.fakes import IM_END, IM_START, ByteTokenizer, FakeExecutor, fake_engine

GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)


@pytest.fixture(autouse=True)
def _check_integrity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTAVO_CHECK", "1")


def make(**options: Any) -> LLM:
    return LLM.from_engine(fake_engine(**options))


def executor_of(llm: LLM) -> FakeExecutor:
    return llm.llm_engine.client.core._executor


def is_clean(llm: LLM) -> bool:
    """Nothing runs, nothing waits, nothing is held, and nothing was left to say."""
    stats = llm.stats()
    return (
        stats.num_running == stats.num_waiting == stats.num_used_blocks == 0
        and not llm.llm_engine.has_unfinished_requests()
    )


class TestPrompts:
    def test_one_in_any_form(self) -> None:
        llm = make()
        forms = ["Hi", {"prompt": "Hi"}, [72, 105], (72, 105), {"prompt_token_ids": [72, 105]}]
        answers = [llm.generate(form, GREEDY) for form in forms]
        assert all(len(a) == 1 for a in answers)
        assert len({tuple(a[0].outputs[0].token_ids) for a in answers}) == 1
        assert [a[0].prompt for a in answers] == ["Hi", "Hi", None, None, None]

    def test_a_list_gives_answers_in_order(self) -> None:
        llm = make(max_num_seqs=2)
        prompts = ["a", [98], {"prompt": "c"}, {"prompt_token_ids": [100]}, "e"]
        lengths = [9, 1, 5, 2, 7]
        params = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in lengths]
        outputs = llm.generate(prompts, params)
        assert [o.prompt_token_ids for o in outputs] == [[97], [98], [99], [100], [101]]
        assert [len(o.outputs[0].token_ids) for o in outputs] == lengths
        assert all(o.finished for o in outputs)
        alone = [llm.generate(p, q)[0] for p, q in zip(prompts, params)]
        assert [o.outputs for o in alone] == [o.outputs for o in outputs]
        assert is_clean(llm)

    def test_empty_list(self) -> None:
        assert make().generate([], GREEDY) == []

    def test_parameters_are_not_changed(self) -> None:
        params = SamplingParams(max_tokens=None)
        make().generate("Hi", params)
        assert params == SamplingParams(max_tokens=None)
        assert params.output_kind is RequestOutputKind.CUMULATIVE

    def test_default_parameters_are_the_models(self) -> None:
        llm = make(generation_config={"temperature": 0.0, "max_new_tokens": 5})
        assert llm.get_default_sampling_params().max_tokens == 5
        assert len(llm.generate("Hi")[0].outputs[0].token_ids) == 5
        assert llm.get_default_sampling_params(top_p=0.5).top_p == 0.5

    def test_priority(self) -> None:
        llm = make(max_num_seqs=1, scheduling_policy="priority")
        llm.generate(["a", "b", "c"], GREEDY, priority=[2, 0, 1])
        first = [s.new_requests[0].token_ids for s in executor_of(llm).steps if s.new_requests]
        assert first == [[98], [99], [97]]

    def test_cache_salt(self) -> None:
        """User case 26: none, a, a, b, none on 33 ids."""
        llm = make()
        cached = []
        for salt in (None, "a", "a", "b", None):
            prompt: dict[str, Any] = {"prompt_token_ids": list(range(33))}
            if salt is not None:
                prompt["cache_salt"] = salt
            cached.append(llm.generate(prompt, GREEDY)[0].num_cached_tokens)
        assert cached == [0, 0, 32, 0, 32]
        assert llm.reset_prefix_cache()
        assert llm.generate([list(range(33))], GREEDY)[0].num_cached_tokens == 0


class TestRefusals:
    @pytest.mark.parametrize(
        ("prompts", "params", "part"),
        [
            (None, GREEDY, "NoneType"),
            (7, GREEDY, "int"),
            (b"Hi", GREEDY, "bytes"),
            ({"text": "Hi"}, GREEDY, "text"),
            (["ok", ""], GREEDY, "prompts[1]"),
            (["ok", None], GREEDY, "prompts[1]"),
            (["ok", ["x"]], GREEDY, "prompts[1]"),
            ([[]], GREEDY, "empty"),
            ([True, False], GREEDY, "True"),
            (["ok"], "greedy", "sampling_params"),
            (["ok"], {"temperature": 0}, "sampling_params"),
            (["ok"], [], "0 entries for 1 prompts"),
            (["ok"], [GREEDY] * 2, "2 entries for 1 prompts"),
            (["ok", "ok"], [GREEDY], "1 entries for 2 prompts"),
            (["ok", "ok"], [GREEDY, None], "prompts[1]"),
        ],
    )
    def test_wrong_input(self, prompts: Any, params: Any, part: str) -> None:
        llm = make()
        with pytest.raises(RequestError) as caught:
            llm.generate(prompts, params)
        assert part in str(caught.value)
        assert executor_of(llm).steps == []
        assert is_clean(llm)
        assert len(llm.generate(["ok"], GREEDY)) == 1

    @pytest.mark.parametrize("priority", [[1], 5, [1, "x"]])
    def test_wrong_priority(self, priority: Any) -> None:
        with pytest.raises(RequestError, match="priority"):
            make().generate(["a", "b"], GREEDY, priority=priority)

    @pytest.mark.parametrize(
        ("num_prompt_tokens", "max_tokens", "named"),
        [
            (60, 4, None),
            (60, 5, ("64", "60", "5")),
            (63, None, None),
            (64, 1, ("64",)),
            (64, None, ("64",)),
            (65, 1, ("64", "65")),
        ],
    )
    def test_length(
        self, num_prompt_tokens: int, max_tokens: int | None, named: tuple[str, ...] | None
    ) -> None:
        """User case 38."""
        llm = make(max_model_len=64)
        prompt = [[1] * num_prompt_tokens]
        params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
        if named is None:
            (output,) = llm.generate(prompt, params)
            assert len(output.outputs[0].token_ids) == 64 - num_prompt_tokens
            assert output.outputs[0].finish_reason == "length"
            return
        with pytest.raises(PromptTooLongError) as caught:
            llm.generate(prompt, params)
        assert all(n in str(caught.value) for n in named)

    @pytest.mark.parametrize(
        ("prompt", "values"),
        [
            ([-1], {}),
            ([[-1]], {}),
            ([259], {}),
            ([5279552648203111001], {}),
            ("", {}),
            ([""], {}),
            ("Hi", {"stop_token_ids": [259]}),
            ("Hi", {"stop_token_ids": [-1], "min_tokens": 4}),
        ],
    )
    def test_beside_running_requests(self, prompt: Any, values: dict[str, Any]) -> None:
        """What is refused does not touch its neighbours."""
        llm = make()
        engine = llm.llm_engine
        expected = llm.generate("neighbour", GREEDY)[0].outputs[0].token_ids
        engine.add_request("n", "neighbour", GREEDY)
        engine.step()
        with pytest.raises(RequestError):
            llm.generate(prompt, SamplingParams(**values))
        while engine.has_unfinished_requests():
            outputs = engine.step()
        assert outputs[0].outputs[0].token_ids == expected

    def test_unknown_engine_option(self) -> None:
        with pytest.raises(ConfigError, match="max_num_seqs"):
            LLM(max_num_seq=3)

    def test_never_fits_the_pool(self) -> None:
        llm = make(executor={"num_blocks": 4})
        with pytest.raises(RequestError):
            llm.generate(["a", [1] * 60], GREEDY)
        assert is_clean(llm)


class TestSeeds:
    """User case 13."""

    PARAMS = SamplingParams(temperature=0.8, seed=42, max_tokens=16, ignore_eos=True)

    def ids(self, llm: LLM, prompts: Any, params: Any) -> list[list[int]]:
        return [c.token_ids for o in llm.generate(prompts, params) for c in o.outputs]

    def test_a_seeded_request_does_not_change_with_its_company(self) -> None:
        (alone,) = self.ids(make(), "Once upon a time", self.PARAMS)
        unseeded = SamplingParams(temperature=1.0, max_tokens=20, ignore_eos=True)
        for options in ({}, {"long_prefill_token_threshold": 7}, {"pipeline_depth": 2}):
            llm = make(**options)
            prompts = ["Once upon a time", "other", "Once upon a time", *"abcdefg"]
            params = [self.PARAMS, unseeded, self.PARAMS, *[unseeded] * 7]
            ids = self.ids(llm, prompts, params)
            assert ids[0] == ids[2] == alone

    def test_several_completions(self) -> None:
        def params(n: int) -> SamplingParams:
            return SamplingParams(temperature=1.0, seed=7, n=n, max_tokens=12, ignore_eos=True)

        one, four, eight = (self.ids(make(), "Hi", params(n)) for n in (1, 4, 8))
        assert eight[:4] == four
        assert four[0] == one[0]
        assert len(set(map(tuple, four))) == 4

    def test_unseeded_runs_repeat_with_the_engine_seed(self) -> None:
        params = SamplingParams(temperature=1.0, max_tokens=12)
        first, again, other = (self.ids(make(seed=s), ["Hi", "Hi"], params) for s in (0, 0, 1))
        assert first == again
        assert first != other
        assert first[0] != first[1]


class TestChat:
    MESSAGES = ({"role": "user", "content": "Hi"},)

    def test_one_conversation(self) -> None:
        llm = make()
        (output,) = llm.chat(list(self.MESSAGES), GREEDY)
        expected = [IM_START, *b"user\nHi", IM_END, IM_START, *b"assistant\n"]
        assert output.prompt_token_ids == expected
        assert output.prompt == "<|im_start|>user\nHi<|im_end|><|im_start|>assistant\n"

    def test_many(self) -> None:
        llm = make()
        outputs = llm.chat([list(self.MESSAGES)] * 2, [GREEDY, GREEDY])
        assert len(outputs) == 2

    def test_options_reach_the_template(self) -> None:
        seen: dict[str, Any] = {}

        class Recording(ByteTokenizer):
            def render_chat(self, messages: Any, **options: Any) -> RenderedChat:
                seen.update(options)
                return RenderedChat("one", [1])

        tools = [{"type": "function", "function": {"name": "f"}}]
        make(tokenizer=Recording()).chat(
            list(self.MESSAGES),
            GREEDY,
            add_generation_prompt=False,
            continue_final_message=True,
            tools=tools,
            chat_template="{{ date }}: {{ messages[0].content }}",
            chat_template_kwargs={"date": "today"},
        )
        assert seen == {
            "add_generation_prompt": False,
            "continue_final_message": True,
            "tools": tools,
            "chat_template": "{{ date }}: {{ messages[0].content }}",
            "date": "today",
        }

    @pytest.mark.parametrize("values", [{"messages": []}, {"tools": 1}, {"self": 1}, {1: 2}, [1]])
    def test_wrong_template_variables(self, values: Any) -> None:
        with pytest.raises(RequestError, match="chat_template_kwargs"):
            make().chat(list(self.MESSAGES), GREEDY, chat_template_kwargs=values)

    @pytest.mark.parametrize("messages", [None, "Hi", [], {}, ["Hi"], [{"role": "user"}, []], 7])
    def test_wrong_messages(self, messages: Any) -> None:
        with pytest.raises(RequestError, match="messages"):
            make().chat(messages, GREEDY)

    def test_a_template_that_refuses_names_the_conversation(self) -> None:
        class Refusing(ByteTokenizer):
            def render_chat(self, messages: Any, **options: Any) -> RenderedChat:
                if messages[0]["content"] == "no":
                    raise ChatTemplateError("not this one", param="messages")
                return RenderedChat("one", [1])

        llm = make(tokenizer=Refusing())
        with pytest.raises(ChatTemplateError, match=r"messages\[1\]: not this one"):
            llm.chat([[{"content": "yes"}], [{"content": "no"}]], GREEDY)
        with pytest.raises(ChatTemplateError, match=r"^not this one"):
            llm.chat([{"content": "no"}], GREEDY)
        assert executor_of(llm).steps == []


class TestStream:
    def test_deltas_join(self) -> None:
        llm = make()
        (whole,) = llm.generate("Hi", GREEDY)
        deltas = [o.outputs[0] for o in llm.stream("Hi", GREEDY)]
        assert [i for d in deltas for i in d.token_ids] == whole.outputs[0].token_ids
        assert "".join(d.text for d in deltas) == whole.outputs[0].text
        assert deltas[-1].finish_reason == "length"

    def test_leaving_it_aborts(self) -> None:
        llm = make()
        for _ in llm.stream("Hi", GREEDY):
            break
        assert is_clean(llm)

    def test_read_in_turns_and_among_generate(self) -> None:
        llm = make()
        expected = {p: llm.generate(p, GREEDY)[0].outputs[0].token_ids for p in ("Hi", "Ho", "Ha")}
        streams = {p: llm.stream(p, GREEDY) for p in ("Hi", "Ho")}
        found: dict[str, list[int]] = {"Hi": [], "Ho": []}
        for turn in range(len(expected["Hi"])):
            for prompt, stream in streams.items():
                found[prompt] += next(stream).outputs[0].token_ids
            if turn == 3:
                assert llm.generate("Ha", GREEDY)[0].outputs[0].token_ids == expected["Ha"]
        for prompt, stream in streams.items():
            for output in stream:
                found[prompt] += output.outputs[0].token_ids
            assert found[prompt] == expected[prompt]
        assert is_clean(llm)


class TestThreads:
    def test_each_gets_its_own_answers(self) -> None:
        llm = make(max_num_seqs=3)
        prompts = list("abcdefgh")
        expected = [llm.generate(p, GREEDY)[0].outputs for p in prompts]
        found: list[list[Any]] = []

        def ask() -> None:
            found.extend([o.outputs for o in llm.generate(prompts, GREEDY)] for _ in range(5))

        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert found == [expected] * 20
        assert is_clean(llm)


class TestEnds:
    @pytest.mark.parametrize("depth", [1, 2])
    def test_ctrl_c_aborts_and_the_engine_goes_on(
        self, depth: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert threading.current_thread() is threading.main_thread()
        llm = make(pipeline_depth=depth)
        expected = llm.generate("Hi", GREEDY)[0].outputs
        executor = executor_of(llm)
        execute_model = executor.execute_model

        def interrupted(step: SchedulerOutput) -> None:
            execute_model(step)
            if len(executor.steps) == 12:
                signal.raise_signal(signal.SIGINT)

        monkeypatch.setattr(executor, "execute_model", interrupted)
        with pytest.raises(KeyboardInterrupt):
            llm.generate(["Hi", "Ho", "Ha"], SamplingParams(max_tokens=200, ignore_eos=True))
        assert is_clean(llm)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        assert llm.generate("Hi", GREEDY)[0].outputs == expected

    def test_a_failed_step_is_told_per_request(self) -> None:
        llm = make(executor={"fail": {1: RuntimeError("boom")}})
        outputs = llm.generate(["a", "b"], GREEDY)
        assert [o.outputs[0].finish_reason for o in outputs] == ["error", "error"]
        assert llm.generate("c", GREEDY)[0].outputs[0].finish_reason == "length"

    def test_a_dead_engine_says_so(self) -> None:
        llm = make(executor={"fail": {1: RuntimeError("boom")}})
        executor_of(llm).healthy = False
        for _ in range(2):
            with pytest.raises(EngineDeadError, match="worker is gone"):
                llm.generate(["a", "b"], GREEDY)

    def test_close_and_context_manager(self) -> None:
        with make() as llm:
            llm.generate("Hi", GREEDY)
        llm.close()
        with pytest.raises(EngineDeadError, match="shut down"):
            llm.generate("Hi", GREEDY)


class TestProgress:
    def test_silent_unless_a_terminal(self, capsys: pytest.CaptureFixture[str]) -> None:
        make().generate(["a", "b"], GREEDY)
        assert capsys.readouterr() == ("", "")

    @pytest.mark.parametrize("stderr", [None, object()])
    def test_silent_without_a_stderr(self, stderr: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys, "stderr", stderr)
        assert len(make().generate(["a", "b"], GREEDY)) == 2

    def test_on_a_terminal(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setattr("octavo.entrypoints.progress._SECONDS_BETWEEN_REFRESHES", 0.0)
        make().generate(["a", "b"], GREEDY)
        out, err = capsys.readouterr()
        assert out == ""
        assert "2/2" in err
        assert "tokens/s" in err
        make().generate(["a", "b"], GREEDY, use_tqdm=False)
        assert capsys.readouterr() == ("", "")

    def test_no_thread_is_started(self, monkeypatch: pytest.MonkeyPatch) -> None:
        llm = make()
        llm.generate("Hi", GREEDY)
        before = threading.active_count()
        monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
        counts = []
        step = llm.llm_engine.step
        monkeypatch.setattr(
            llm.llm_engine, "step", lambda: (counts.append(threading.active_count()), step())[1]
        )
        llm.generate("Hi", GREEDY)
        assert max(counts) <= before  # threads of earlier tests may still be ending
