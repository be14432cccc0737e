from __future__ import annotations

import numpy as np
import pytest

from octavo.config.sections import SchedulerConfig
from octavo.contracts.kv_spec import BLOCK_SIZE, KVCacheConfig, KVCacheGroup, MambaSpec
from octavo.contracts.messages import FinishReason
from octavo.contracts.step import RunnerOutput
from octavo.core.scheduler import Scheduler
from octavo.errors import ConfigError, PromptTooLongError, RequestError
from tests.core.fake_worker import EOS, FakeCore, FakeModel, kv_config, make_request


def cached(core: FakeCore, request_id: str) -> int:
    return core.answers[request_id].num_cached_tokens


class TestAdding:
    def test_an_id_in_use_is_refused_and_the_first_one_is_not_hurt(self) -> None:
        core = FakeCore()
        core.add("same", [1] * 20, max_tokens=5)
        with pytest.raises(RequestError, match="'same' is in use") as error:
            core.scheduler.add_request(make_request("same", [2] * 20))
        assert error.value.param == "request_id"
        core.run()
        core.check_complete()

    def test_an_id_may_come_again_at_once(self) -> None:
        core = FakeCore(depth=2)
        for _ in range(3):
            core.add("same", [1] * 20, max_tokens=50, ignore_eos=True)
            core.step()
            core.finish("same")
        core.add("same", [1] * 20, max_tokens=5)
        core.run()
        core.check_complete()

    def test_an_id_aborted_while_in_flight_and_sent_again_gets_its_own_results(self) -> None:
        core = FakeCore(depth=3)
        core.add("same", [1] * 20, max_tokens=50, ignore_eos=True)
        for _ in range(3):
            core.schedule()
        core.finish("same")
        core.add("same", [2] * 25, max_tokens=50, ignore_eos=True)
        core.run()
        core.check_complete()

    def test_what_can_never_fit_is_refused_at_once(self) -> None:
        core = FakeCore(num_blocks=5, max_model_len=100)
        with pytest.raises(PromptTooLongError, match="at most 99"):
            core.add("long", [1] * 100)
        with pytest.raises(RequestError, match="at most 63 and one more"):
            core.add("wide", [1] * 64)
        assert not core.scheduler.has_work()
        core.add("fits", [1] * 63, max_tokens=9)
        core.run()
        core.check_complete()

    def test_what_a_window_holds_counts_all_steps_in_flight(self) -> None:
        """16 tokens of window and 3 x 16 in flight: 4 blocks, and one for the alignment."""
        core = FakeCore(windows=(17,), budget=16, depth=3, num_blocks=5)
        with pytest.raises(RequestError, match="at most 63 and one more"):
            core.add("long", [1] * 100)
        core = FakeCore(windows=(17,), budget=16, depth=3, num_blocks=6)
        core.add("long", range(1, 300), max_tokens=60, ignore_eos=True)
        core.run()
        core.check_complete()
        assert core.scheduler.stats().num_preemptions == 0

    def test_unsupported_groups_and_secrets(self) -> None:
        group = KVCacheGroup(layer_names=("l",), spec=MambaSpec(state_bytes=8))
        with pytest.raises(ConfigError, match="MambaSpec"):
            Scheduler(
                SchedulerConfig(), KVCacheConfig(num_blocks=9, groups=(group,)), max_model_len=9
            )
        with pytest.raises(ConfigError, match="hash secret"):
            Scheduler(SchedulerConfig(), kv_config(9), max_model_len=9, hash_secret=b"short")


class TestEnding:
    def test_lengths(self) -> None:
        core = FakeCore(max_model_len=64)
        for name, prompt, max_tokens, count in (
            ("a", 60, 4, 4),
            ("b", 63, None, 1),
            ("c", 60, 50, 4),
            ("d", 10, 1, 1),
        ):
            core.add(name, [1] * prompt, max_tokens=max_tokens, ignore_eos=True)
            core.run()
            assert len(core.answers[name].token_ids) == count
            assert core.answers[name].finish_reason is FinishReason.LENGTH

    def test_min_tokens_and_stop_ids(self) -> None:
        core = FakeCore(model=FakeModel(4))
        core.add("a", [1] * 5, max_tokens=30, min_tokens=9, stop_token_ids=[2])
        core.add("b", [1] * 5, max_tokens=30, ignore_eos=True, stop_token_ids=[EOS])
        core.run()
        core.check_complete()
        assert len(core.answers["a"].token_ids) > 9
        assert core.answers["b"].stop_reason == EOS

    @pytest.mark.parametrize("depth", [1, 2, 3])
    def test_nothing_is_computed_past_a_length_that_is_known(self, depth: int) -> None:
        core = FakeCore(depth=depth)
        core.add("r", [1] * 20, max_tokens=7, ignore_eos=True)
        core.run()
        assert core.worker.num_computed_tokens == 20 + 6

    def test_results_in_flight_for_one_that_stopped_are_ignored(self) -> None:
        core = FakeCore(depth=3, model=FakeModel(3))
        for i in range(6):
            core.add(str(i), [1, i], max_tokens=40)
        core.run()
        core.check_complete()
        reasons = {answer.finish_reason for answer in core.answers.values()}
        assert FinishReason.STOP in reasons

    @pytest.mark.parametrize("steps", range(8))
    @pytest.mark.parametrize("depth", [1, 3])
    def test_abort_at_any_time(self, steps: int, depth: int) -> None:
        """Waiting, in the middle of the prompt, decoding, preempted: all is given back."""
        core = FakeCore(num_blocks=6, budget=16, depth=depth)
        for name in ("a", "b", "c"):
            core.add_n(name, 2, [ord(name)] * 30, max_tokens=40, ignore_eos=True)
        for _ in range(steps):
            core.step()
        for request_id in list(core.answers):
            core.finish(request_id)
            core.finish(request_id)  # once more is no harm
        assert not core.scheduler.has_unfinished_requests()
        assert core.scheduler.stats().num_used_blocks == 0
        core.run()
        assert {a.finish_reason for a in core.answers.values()} == {FinishReason.ABORT}

    def test_a_stop_string_ends_it_from_outside(self) -> None:
        core = FakeCore(depth=2)
        core.add("r", [1] * 20, max_tokens=50, ignore_eos=True)
        core.step()
        core.finish("r", FinishReason.STOP)
        core.run()
        assert core.answers["r"].finish_reason is FinishReason.STOP

    def test_unknown_ids_are_passed_over(self) -> None:
        core = FakeCore()
        assert core.scheduler.finish_requests(["nobody"], FinishReason.ABORT) == []
        assert not core.scheduler.has_work()


class TestSteps:
    def test_no_phases(self) -> None:
        """A step mixes decoding, the rest of a prompt and new prompts, within its budget."""
        core = FakeCore(budget=20)
        core.add("a", [1] * 10, max_tokens=9, ignore_eos=True)
        core.step()
        core.add("b", [2] * 25, max_tokens=9, ignore_eos=True)
        core.add("c", [3] * 5, max_tokens=9, ignore_eos=True)
        assert core.schedule().num_scheduled_tokens == {"a": 1, "b": 19}
        core.settle()
        step = core.schedule()
        assert step.num_scheduled_tokens == {"a": 1, "b": 6, "c": 5}
        assert step.samples == ["a", "b", "c"]
        core.settle()
        core.run()
        core.check_complete()

    def test_without_a_budget_decoding_takes_nothing_from_prompts(self) -> None:
        """128 tokens of prompts, and one for each request that ran before."""
        core = FakeCore(budget=None, prefix_caching=False)
        core.add("a", [1] * 10, max_tokens=9, ignore_eos=True)
        core.add("b", [2] * 10, max_tokens=9, ignore_eos=True)
        core.step()
        core.add("c", [3] * 200, max_tokens=9)
        core.add("d", [4] * 60, max_tokens=9)
        assert core.schedule().num_scheduled_tokens == {"a": 1, "b": 1, "c": 128}
        core.settle()
        assert core.schedule().num_scheduled_tokens == {"a": 1, "b": 1, "c": 72, "d": 57}
        core.settle()
        core.run()
        core.check_complete()

    def test_a_long_prompt_does_not_make_decoding_skip_a_step(self) -> None:
        core = FakeCore(budget=20, policy="priority")
        for i in range(4):
            core.add(str(i), [i + 1] * 3, max_tokens=30, ignore_eos=True, priority=5)
        core.step()
        core.add("long", [9] * 90, max_tokens=5, priority=0)
        core.step()
        for _ in range(4):
            counts = core.schedule().num_scheduled_tokens
            assert counts["long"] == 16
            assert sum(counts.values()) == 20
            core.settle()

    def test_prefill_threshold(self) -> None:
        core = FakeCore(budget=20, threshold=7)
        core.add("a", [1] * 30, max_tokens=3)
        core.add("b", [2] * 10, max_tokens=3)
        assert core.schedule().num_scheduled_tokens == {"a": 7, "b": 7}
        core.settle()
        core.run()
        core.check_complete()

    def test_at_most_max_num_seqs_run(self) -> None:
        core = FakeCore(max_num_seqs=2)
        for i in range(5):
            core.add(str(i), [i + 1] * 5, max_tokens=4, ignore_eos=True)
        assert len(core.schedule().new_requests) == 2
        assert core.scheduler.stats().num_waiting == 3
        core.settle()
        core.run()
        core.check_complete()

    def test_priority_goes_first(self) -> None:
        core = FakeCore(policy="priority", max_num_seqs=1)
        for name, priority in (("low", 2), ("high", 0), ("middle", 1)):
            core.add(name, [1] * 5, max_tokens=1, priority=priority)
        order = []
        while core.scheduler.has_unfinished_requests():
            order += [new.request_id for new in core.schedule().new_requests]
            core.settle()
        assert order == ["high", "middle", "low"]

    @pytest.mark.parametrize("policy", ["fcfs", "priority"])
    def test_the_victim_is_the_last_in_order(self, policy: str) -> None:
        core = FakeCore(num_blocks=9, policy=policy, prefix_caching=False)
        for name, priority in (("a", 3), ("b", 1), ("c", 2)):
            core.add(name, [ord(name)] * 30, max_tokens=40, ignore_eos=True, priority=priority)
        victims = []
        while core.scheduler.has_unfinished_requests():
            core.step()
            victims += core.steps[-1].preempted_request_ids
        assert victims[0] == ("c" if policy == "fcfs" else "a")
        assert ("a" if policy == "fcfs" else "b") not in victims
        core.check_complete()

    def test_steps_are_settled_in_order(self) -> None:
        core = FakeCore(depth=2)
        core.add("r", [1] * 20, max_tokens=9)
        core.schedule()
        second = core.schedule()
        with pytest.raises(ValueError, match="step 1 is not the oldest in flight"):
            core.scheduler.update_from_output(second, RunnerOutput(step_id=1))

    def test_a_step_with_nothing_in_it_is_no_event(self) -> None:
        core = FakeCore()
        step = core.scheduler.schedule()
        assert core.scheduler.update_from_output(step, RunnerOutput(step_id=step.step_id)) == []


class TestPrefixCache:
    def test_replays(self) -> None:
        """User case 24: 16 * floor((n - 1) / 16) tokens come from the cache."""
        for n in (1, 15, 16, 17, 31, 32, 33, 48):
            core = FakeCore()
            for i in range(3):
                core.add(f"{i}", range(100, 100 + n), max_tokens=8, ignore_eos=True)
                core.run()
            expected = 16 * ((n - 1) // 16)
            assert [cached(core, str(i)) for i in range(3)] == [0, expected, expected]
            assert core.answers["0"].token_ids == core.answers["2"].token_ids
            core.check_complete()

    def test_an_extension_and_a_beginning(self) -> None:
        core = FakeCore()
        for name, n in (("32", 32), ("33", 33), ("48", 48), ("32 again", 32)):
            core.add(name, range(1, n + 1), max_tokens=1)
            core.run()
        assert [cached(core, name) for name in ("33", "48", "32 again")] == [32, 32, 16]

    def test_outputs_are_cached_too(self) -> None:
        for depth in (1, 2, 3):
            core = FakeCore(depth=depth)
            core.add("a", [1] * 20, max_tokens=45, ignore_eos=True)
            core.run()
            conversation = [1] * 20 + core.answers["a"].token_ids
            core.add("b", [*conversation, 5, 6], max_tokens=1)
            core.run()
            assert cached(core, "b") == 64  # of 65 tokens, all but the last have KV

    def test_salts(self) -> None:
        """User case 26."""
        core = FakeCore()
        for i, salt in enumerate([None, "a", "a", "b", None]):
            core.add(f"{i}", range(1, 34), max_tokens=4, cache_salt=salt)
            core.run()
        assert [cached(core, str(i)) for i in range(5)] == [0, 0, 32, 0, 32]
        for i, prompt in enumerate([[65] * 33, [321] * 33, [65] * 33]):
            core.add(f"ids {i}", prompt, max_tokens=1)
            core.run()
        assert [cached(core, f"ids {i}") for i in range(3)] == [0, 0, 32]
        core.check_complete()

    def test_queries_count_once_however_long_a_request_waits(self) -> None:
        """User case 28: eight prompts of 33 ids, one at a time."""
        core = FakeCore(max_num_seqs=1)
        for i in range(8):
            core.add(str(i), [i + 1] * 33, max_tokens=3)
        core.run()
        stats = core.scheduler.stats()
        assert (stats.prefix_queries, stats.prefix_hits) == (8 * 33, 0)

    def test_counters_under_preemption(self) -> None:
        """User case 28: a quarter of the blocks needed; nothing is counted again."""
        core = FakeCore(num_blocks=24, max_num_seqs=12, budget=256)
        for i in range(12):
            options = {"prompt_logprobs": 0} if i == 3 else {}
            core.add(str(i), [i + 1] * 40, max_tokens=64, ignore_eos=True, seed=i, **options)
        core.run()
        core.check_complete()
        stats = core.scheduler.stats()
        assert stats.num_preemptions > 0
        assert stats.prompt_tokens == 12 * 40
        assert stats.generation_tokens == 12 * 64
        assert (stats.prefix_queries, stats.prefix_hits) == (11 * 40, 0)
        assert all(answer.num_cached_tokens == 0 for answer in core.answers.values())

    def test_a_shared_prefix_is_computed_once(self) -> None:
        """Even by requests of one step."""
        core = FakeCore(num_blocks=200, budget=8192, max_num_seqs=16, max_model_len=2048)
        prefix = [i % 37 + 1 for i in range(1000)]
        for i in range(10):
            core.add(str(i), [*prefix, *[i + 1] * 24], max_tokens=4)
        core.run()
        core.check_complete()
        tails = 24 + 1000 % BLOCK_SIZE
        outputs = sum(len(answer.token_ids) - 1 for answer in core.answers.values())
        assert core.worker.num_computed_tokens == 1000 + 24 + 9 * tails + outputs

    def test_equal_prompts_do_not_fill_the_cache_with_copies(self) -> None:
        core = FakeCore()
        for i in range(30):
            core.add(str(i), [1] * 48, max_tokens=1)
            core.run()
        assert core.scheduler.stats().num_cached_blocks == 3

    def test_reset(self) -> None:
        core = FakeCore()
        core.add("a", [1] * 40, max_tokens=5, ignore_eos=True)
        core.step()
        assert not core.scheduler.reset_prefix_cache()
        core.run()
        assert core.scheduler.reset_prefix_cache()
        assert core.scheduler.stats().num_cached_blocks == 0
        core.add("b", [1] * 40, max_tokens=5)
        core.run()
        assert cached(core, "b") == 0
        core.check_complete()


class TestLogprobs:
    @pytest.mark.parametrize("depth", [1, 2])
    def test_prompt_logprobs_are_the_same_cached_or_not_chunked_or_preempted(
        self, depth: int
    ) -> None:
        """User case 9."""
        core = FakeCore(num_blocks=7, budget=16, depth=depth)
        prompt = list(range(100, 133))
        core.add("warm", prompt, max_tokens=30, ignore_eos=True)
        core.step()
        core.add("r", prompt, max_tokens=40, ignore_eos=True, prompt_logprobs=1, logprobs=0)
        core.run()
        core.check_complete()
        answer = core.answers["r"]
        rows = [o.prompt_logprobs for o in answer.outputs if o.prompt_logprobs is not None]
        found = np.concatenate([r.logprobs for r in rows])
        right = core.worker.rows_of(prompt, range(1, 33))
        assert (found == right.logprobs).all()
        assert found.shape == (32, 1)
        sampled = np.concatenate([o.logprobs.logprobs for o in answer.outputs if o.logprobs])
        everything = prompt + answer.token_ids
        assert (sampled == core.worker.rows_of(everything, range(33, 73)).logprobs).all()
        assert cached(core, "r") == 0

    def test_a_step_holds_a_bounded_number_of_them(self) -> None:
        """All of a vocabulary's for every token of a prompt: one token per step."""
        core = FakeCore(num_blocks=64, budget=512)
        core.add("all", range(1, 31), max_tokens=3, ignore_eos=True, prompt_logprobs=-1)
        core.add("few", range(1, 61), max_tokens=9, ignore_eos=True, prompt_logprobs=3)
        core.run()
        core.check_complete()
        counts = [step.num_scheduled_tokens for step in core.steps]
        assert counts[0] == {"all": 1, "few": 60}
        assert max(c.get("all", 0) for c in counts) == 1


def test_stats_tell_where_blocks_are() -> None:
    core = FakeCore(num_blocks=11)
    assert core.scheduler.stats().num_blocks == 10
    core.add("a", [1] * 40, max_tokens=3, ignore_eos=True)
    core.step()
    stats = core.scheduler.stats()
    assert (stats.num_running, stats.num_used_blocks, stats.kv_cache_usage) == (1, 3, 0.3)
    assert (stats.num_steps, stats.step_tokens, stats.generation_tokens) == (1, 40, 1)
    core.run()
    stats = core.scheduler.stats()
    assert (stats.num_running, stats.num_used_blocks, stats.num_cached_blocks) == (0, 0, 2)
