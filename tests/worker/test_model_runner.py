"""The runner over a toy device: whatever happens around a request, its answer is its own."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.contracts.features import RunnerFeature
from octavo.contracts.kv_spec import BlockCopy
from octavo.contracts.sampling_params import SamplingParams
from octavo.contracts.step import (
    CachedRequestData,
    GrammarOutput,
    NewRequestData,
    RunnerOutput,
    SchedulerOutput,
)
from octavo.errors import KernelError, ModelError
from tests.worker.toy import (
    BLOCK,
    GREEDY,
    POISON,
    VOCAB,
    ToyRequest,
    ToyScheduler,
    check,
    generate_alone,
    make_toy,
    run_step,
    run_to_end,
)


def any_params(rng: random.Random) -> SamplingParams:
    return SamplingParams(
        temperature=rng.choice([0.0, 0.0, 0.7, 1.0, 2.0]),
        top_k=rng.choice([0, 0, 1, 5]),
        top_p=rng.choice([1.0, 0.9, 0.3]),
        min_p=rng.choice([0.0, 0.0, 0.2]),
        seed=rng.choice([0, 7, 2**63 + 5, -3]),
        min_tokens=rng.choice([0, 0, 3, 9]),
        logprobs=rng.choice([None, None, 0, 2, -1]),
        prompt_logprobs=rng.choice([None, None, 0, 2, -1]),
        repetition_penalty=rng.choice([1.0, 1.0, 1.3, 0.5]),
        frequency_penalty=rng.choice([0.0, 0.0, 0.75, -2.0]),
        presence_penalty=rng.choice([0.0, 0.0, 1.5]),
        logit_bias=rng.choice([None, None, {4: 3.0, 9: -100.0}]),
        allowed_token_ids=rng.choice([None, None, list(range(3, 30, 2))]),
    )


def any_request(rng: random.Random, name: str) -> ToyRequest:
    return ToyRequest(
        request_id=name,
        prompt=[rng.randrange(VOCAB - 2) for _ in range(rng.randint(1, 40))],
        params=any_params(rng),
        sample_index=rng.randrange(3),
        stop_ids=tuple(rng.sample(range(VOCAB - 2), rng.randint(0, 4))),
        bad_words=rng.choice([(), (), ((7,), (9,)), ((5, 7), (7, 9, 11), (3, 3))]),
    )


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), depth=st.integers(1, 3), sliding=st.booleans())
def test_churn_never_changes_an_answer(seed: int, depth: int, sliding: bool) -> None:
    """Adds, chunks, finishes and preemptions at random, some of them with steps in flight; rows and
    blocks are reused all the time."""
    rng = random.Random(seed)
    windows = (None, 20) if sliding else (None,)
    toy = make_toy(max_num_seqs=4, num_blocks=48, windows=windows)
    scheduler = ToyScheduler(len(windows), 48)
    everything: list[ToyRequest] = []
    for i in range(40):
        while scheduler.num_in_flight >= depth:
            scheduler.collect()
        roll = rng.random()
        if roll < 0.4:
            request = any_request(rng, f"r{i}")
            everything.append(request)
            scheduler.add(request)
        elif roll < 0.5 and scheduler.running:
            scheduler.finish(rng.choice(list(scheduler.running)))
        elif roll < 0.65 and scheduler.running:
            scheduler.preempt(rng.choice(list(scheduler.running)))
        if roll >= 0.65 or not scheduler.running:
            while scheduler.waiting and len(scheduler.running) < 4:
                scheduler.admit(rng.choice(list(scheduler.waiting)))
        for request in list(scheduler.running.values()):
            if request.num_tokens > 70:
                scheduler.finish(request.request_id)
        order = rng.sample(list(scheduler.running), len(scheduler.running))
        run_step(toy, scheduler, {r: rng.choice([0, 1, 3, 16]) for r in order})
    while scheduler.num_in_flight:
        scheduler.collect()
    assert all(r.error is None for r in everything)
    for request in everything:
        check(request)


@pytest.mark.parametrize("num_requests", [1, 4])
def test_answers_do_not_depend_on_company(num_requests: int) -> None:
    rng = random.Random(num_requests)
    requests = [any_request(rng, f"r{i}") for i in range(num_requests)]
    run_to_end(make_toy(), requests, 12)
    for request in requests:
        check(request)


def test_the_same_seed_twice_in_a_batch_and_alone() -> None:
    params = SamplingParams(temperature=1.0, seed=42)
    twins = [ToyRequest(name, [1, 2, 3], params) for name in "ab"]
    other = ToyRequest("c", [1, 2, 3], SamplingParams(temperature=1.0, seed=43))
    run_to_end(make_toy(), [twins[0], other, twins[1]], 16)
    alone = ToyRequest("a", [1, 2, 3], params)
    run_to_end(make_toy(), [alone], 16)
    assert twins[0].output[:16] == twins[1].output[:16] == alone.output[:16]
    assert other.output[:16] != alone.output[:16]


def test_completions_of_one_request_differ_by_sample_index() -> None:
    params = SamplingParams(temperature=1.0, seed=7)
    outputs = []
    for company in (4, 2):
        requests = [ToyRequest(str(i), [5, 6], params, sample_index=i) for i in range(company)]
        run_to_end(make_toy(), requests, 16)
        outputs.append([r.output[:16] for r in requests])
    assert outputs[0][:2] == outputs[1]
    assert len({tuple(o) for o in outputs[0]}) == 4


def test_step_arrays_are_exact() -> None:
    toy = make_toy(max_num_seqs=3, windows=(None, 20))
    new = [
        NewRequestData(
            request_id=name,
            token_ids=tokens,
            num_prompt_tokens=len(tokens),
            block_ids=blocks,
            num_computed_tokens=computed,
            sampling_params=GREEDY,
        )
        for name, tokens, blocks, computed in (
            ("a", list(range(18)), ([3, 9], [5, 4]), 0),
            ("b", [7, 8, 9], ([2], [6]), 0),
        )
    ]
    toy.runner.execute_model(
        SchedulerOutput(
            step_id=0,
            new_requests=new,
            num_scheduled_tokens={"b": 2, "a": 18},
            total_num_scheduled_tokens=20,
            samples=["a"],
        )
    )
    toy.runner.sample_tokens(None)
    step = toy.graph.steps[0]
    assert step.token_ids.tolist() == [7, 8, *range(18)]
    assert step.positions.tolist() == [0, 1, *range(18)]
    assert step.query_start.tolist() == [0, 2, 20]
    assert step.seq_lens.tolist() == [2, 18]
    assert [t.tolist() for t in step.block_tables] == [[[2, 0], [3, 9]], [[6, 0], [5, 4]]]
    a_slots = [*range(48, 64), 144, 145]
    assert step.slot_mapping[0].tolist() == [32, 33, *a_slots]
    assert step.slot_mapping[1].tolist() == [96, 97, *range(80, 96), 64, 65]
    assert step.logit_rows.tolist() == [19]

    toy.runner.execute_model(
        SchedulerOutput(
            step_id=1,
            finished_request_ids=["a"],
            cached_requests=CachedRequestData(
                request_ids=["b"], new_block_ids={"b": ([8], [10])}, num_computed_tokens=[2]
            ),
            num_scheduled_tokens={"b": 1},
            total_num_scheduled_tokens=1,
            samples=["b"],
        )
    )
    toy.runner.sample_tokens(None)
    step = toy.graph.steps[1]
    assert step.token_ids.tolist() == [9]
    assert step.positions.tolist() == [2]
    assert step.seq_lens.tolist() == [3]
    assert [t.tolist() for t in step.block_tables] == [[[2]], [[6]]]
    arrays = [step.token_ids, step.positions, step.query_start, step.seq_lens, step.logit_rows]
    for array in [*arrays, *step.block_tables, *step.slot_mapping]:
        assert array.dtype == np.int32
        assert array.flags.c_contiguous


def draft_step(step_id: int, num_computed: int, draft: list[int]) -> SchedulerOutput:
    """A step of request "r": its last token and a draft."""
    count = 1 + len(draft)
    return SchedulerOutput(
        step_id=step_id,
        cached_requests=CachedRequestData(request_ids=["r"], num_computed_tokens=[num_computed]),
        num_scheduled_tokens={"r": count},
        total_num_scheduled_tokens=count,
        scheduled_drafts={"r": draft} if draft else {},
        samples=["r"],
    )


@pytest.mark.parametrize("num_right", range(4))
@pytest.mark.parametrize(
    "params",
    [
        GREEDY,
        SamplingParams(temperature=1.0, seed=3, logprobs=2),
        SamplingParams(temperature=0.0, repetition_penalty=1.5, presence_penalty=1.0, logprobs=0),
    ],
)
def test_drafts_are_accepted_while_the_model_agrees(params: SamplingParams, num_right: int) -> None:
    """Greedy and seeded alike: a draft holds where the model would have drawn the same."""
    prompt = list(range(10))
    want, want_logprobs = generate_alone(prompt, params, 6)
    draft = [t if i < num_right else (t + 1) % 9 for i, t in enumerate(want[1:4])]
    toy = make_toy()
    scheduler = ToyScheduler(1, 8)
    scheduler.add(ToyRequest("r", prompt, params))
    scheduler.admit("r")
    run_step(toy, scheduler, {"r": 64})

    toy.runner.execute_model(draft_step(1, len(prompt), draft))
    output = toy.runner.sample_tokens(None)
    assert output.sampled_token_ids == [want[1 : num_right + 2]]
    if params.logprobs is not None:
        for i, logprobs in enumerate(want_logprobs[1 : num_right + 2]):
            np.testing.assert_array_equal(output.logprobs["r"].logprobs[i], logprobs.logprobs[0])
        assert len(output.logprobs["r"]) == num_right + 1

    # The next step goes on after the accepted tokens and overwrites the rejected ones.
    known = len(prompt) + num_right + 2
    toy.runner.execute_model(draft_step(2, known - 1, []))
    assert toy.runner.sample_tokens(None).sampled_token_ids == [[want[num_right + 2]]]
    with pytest.raises(KernelError, match="not known"):
        toy.runner.execute_model(draft_step(3, known + 1, []))


# ------------------------------------------------------------------------ failures


def test_logits_that_are_not_finite_fail_their_request_only() -> None:
    requests = [
        ToyRequest("good", [1, 2, 3], SamplingParams(temperature=1.0, seed=1, logprobs=2)),
        ToyRequest("greedy", [1, POISON, 3], GREEDY),
        ToyRequest("drawn", [POISON], SamplingParams(temperature=1.0, seed=1, logprobs=2)),
    ]
    toy = make_toy()
    run_to_end(toy, requests, 8)
    check(requests[0])
    for request in requests[1:]:
        assert request.error == "the model's logits are not finite (NaN or infinity)"
        assert not request.output


def test_a_failed_request_stays_out_while_steps_are_in_flight() -> None:
    toy = make_toy()
    scheduler = ToyScheduler(1, 16)
    requests = [ToyRequest("bad", [POISON], GREEDY), ToyRequest("good", [4], GREEDY)]
    for request in requests:
        scheduler.add(request)
        scheduler.admit(request.request_id)
    for _ in range(3):  # the scheduler does not know of the failure yet
        run_step(toy, scheduler, {"bad": 1, "good": 1})
    outputs = [scheduler.collect() for _ in range(3)]
    assert [list(o.errors) for o in outputs] == [["bad"]] * 3
    assert [len(o.sampled_token_ids[0]) for o in outputs] == [0, 0, 0]
    check(requests[1])
    run_step(toy, scheduler, {"good": 1})  # carries the finished id
    again = ToyRequest("bad", [5, 6], GREEDY)
    scheduler.add(again)
    scheduler.admit("bad")
    run_step(toy, scheduler, {"bad": 8, "good": 1})
    scheduler.collect()
    scheduler.collect()
    check(again)
    assert again.output


@pytest.mark.parametrize(
    ("prompt", "params", "message"),
    [
        ([1, VOCAB], GREEDY, "token id 32 is not in the vocabulary; the model's ids are 0…31"),
        ([-1], GREEDY, "token id -1 is not in the vocabulary"),
        ([5279552648203111001], GREEDY, "token id 5279552648203111001 is not in the vocabulary"),
        ([], GREEDY, "0 tokens; a request has 1…80"),
        ([1] * 81, GREEDY, "81 tokens; a request has 1…80"),
        ([1], None, "a request that samples needs sampling_params"),
        ([1], SamplingParams(temperature=1.0), "seed=None"),
        ([2**70], GREEDY, "internal error: "),
    ],
)
def test_a_request_that_cannot_be_added_fails_alone(
    prompt: list[int], params: SamplingParams | None, message: str
) -> None:
    toy = make_toy()
    bad = NewRequestData(
        request_id="bad",
        token_ids=prompt,
        num_prompt_tokens=len(prompt),
        block_ids=([1],),
        num_computed_tokens=0,
        sampling_params=params,
    )
    good = NewRequestData(
        request_id="good",
        token_ids=[1, 2],
        num_prompt_tokens=2,
        block_ids=([2],),
        num_computed_tokens=0,
        sampling_params=GREEDY,
    )
    toy.runner.execute_model(
        SchedulerOutput(
            step_id=0,
            new_requests=[bad, good],
            num_scheduled_tokens={"bad": 1, "good": 2},
            total_num_scheduled_tokens=3,
            samples=["bad", "good"],
        )
    )
    output = toy.runner.sample_tokens(None)
    assert output.request_ids == ["bad", "good"]
    assert output.sampled_token_ids == [[], generate_alone([1, 2], GREEDY, 1)[0]]
    assert list(output.errors) == ["bad"]
    assert output.errors["bad"].startswith(message)
    assert len(toy.graph.steps[0].token_ids) == 2


@pytest.mark.parametrize("max_logit_rows", [2, 64])
def test_grammars_mask_their_own_rows(max_logit_rows: int) -> None:
    """Whoever fails or has none beside them; drafts have a row each."""
    toy = make_toy(max_logit_rows=max_logit_rows)
    names = ["plain", "masked", "failed", "drafts"]
    toy.runner.execute_model(
        SchedulerOutput(
            step_id=0,
            new_requests=[
                NewRequestData(
                    request_id=name,
                    token_ids=[1, 2] if name != "failed" else [1, POISON],
                    num_prompt_tokens=2,
                    block_ids=([4 + i],),
                    num_computed_tokens=0,
                    sampling_params=GREEDY,
                )
                for i, name in enumerate(names)
            ],
            num_scheduled_tokens=dict(zip(names, [2, 2, 2, 4])),
            total_num_scheduled_tokens=10,
            scheduled_drafts={"drafts": [5, 6]},
            samples=names,
            grammar_request_ids=names[1:],
        )
    )
    allowed = [[3], [9], [5], [7], [8]]  # of masked, failed, and the three rows of drafts
    bitmask = np.array([[sum(1 << i for i in ids)] for ids in allowed], dtype=np.int32)
    output = toy.runner.sample_tokens(
        GrammarOutput(request_ids=["masked", "failed", "drafts"], bitmask=bitmask)
    )
    assert output.sampled_token_ids == [generate_alone([1, 2], GREEDY, 1)[0], [3], [], [5, 7]]
    assert list(output.errors) == ["failed"]


# ------------------------------------------------------------------------ what else a step does


def test_a_step_without_tokens_applies_its_diffs() -> None:
    toy = make_toy(max_num_seqs=1)
    for name in ("a", "b"):  # one row: "b" fits only if "a" has left
        requests = ToyRequest(name, [1, 2], GREEDY)
        scheduler = ToyScheduler(1, 8)
        scheduler.add(requests)
        scheduler.admit(name)
        run_step(toy, scheduler, {name: 2})
        scheduler.collect()
        check(requests)
        scheduler.finish(name)
        step = run_step(toy, scheduler, {})
        assert step.finished_request_ids == [name]
        assert scheduler.collect().request_ids == []
    assert len(toy.graph.steps) == 2


def test_pages_are_cleared_then_copied_before_the_forward() -> None:
    toy = make_toy()
    pages = toy.kv.pools[0].reshape(-1, BLOCK)
    pages[:] = np.arange(len(pages))[:, None]
    toy.runner.execute_model(
        SchedulerOutput(
            step_id=0,
            block_copies=[BlockCopy(src=3, dst=4), BlockCopy(src=4, dst=5)],
            blocks_to_clear=[4, 6],
        )
    )
    assert pages[:8, 0].tolist() == [0, 1, 2, 3, 3, 3, -1, 7]


class Recorder(RunnerFeature):
    name = "recorder"

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def add_request(self, row: int, request: NewRequestData) -> None:
        self.calls.append(("add", row, request.request_id))

    def remove_request(self, row: int) -> None:
        self.calls.append(("remove", row))

    def apply_staged_writes(self) -> None:
        self.calls.append(("apply",))

    def before_forward(self, step: SchedulerOutput) -> None:
        self.calls.append(("before", step.extras.get(self.name)))

    def after_forward(self, step: SchedulerOutput, output: RunnerOutput) -> None:
        output.extras[self.name] = len(output.request_ids)


def test_features_live_through_a_step() -> None:
    recorder = Recorder()
    toy = make_toy(features=[recorder])
    scheduler = ToyScheduler(1, 8)
    scheduler.add(ToyRequest("r", [1], GREEDY))
    scheduler.admit("r")
    step = scheduler.schedule({"r": 1})
    step.extras["recorder"] = "data"
    toy.runner.execute_model(step)
    assert toy.runner.sample_tokens(None).extras == {"recorder": 1}
    toy.runner.execute_model(SchedulerOutput(step_id=1, preempted_request_ids=["r"]))
    assert recorder.calls == [
        ("add", 0, "r"),
        ("apply",),
        ("before", "data"),
        ("remove", 0),
        ("apply",),
        ("before", None),
    ]


class Refuses(RunnerFeature):
    def add_request(self, row: int, request: NewRequestData) -> None:
        if request.request_id == "r1":
            raise RuntimeError("no slot")


def test_a_feature_that_refuses_fails_the_request_alone() -> None:
    recorder = Recorder()
    toy = make_toy(max_num_seqs=2, features=[recorder, Refuses()])
    requests = [ToyRequest(f"r{i}", [i + 1, 2], GREEDY) for i in range(2)]
    run_to_end(toy, requests, 4)
    assert requests[1].error == "internal error: no slot"
    check(requests[0])
    assert ("remove", recorder.calls[1][1]) in recorder.calls  # its row is free again


def test_warm_up_leaves_no_trace() -> None:
    toy = make_toy(max_num_seqs=1, windows=(None, 20))
    toy.runner.warm_up()
    assert len(toy.graph.steps) == 1
    assert all((pool == -1).all() for pool in toy.kv.pools)
    request = ToyRequest("r", [1, 2], GREEDY)
    scheduler = ToyScheduler(2, 8)
    scheduler.add(request)
    scheduler.admit("r")
    run_step(toy, scheduler, {"r": 2})
    scheduler.collect()
    check(request)


def test_warm_up_finds_a_broken_model(monkeypatch: pytest.MonkeyPatch) -> None:
    toy = make_toy()
    nothing = np.array([[0, -np.inf]], dtype=np.float32)
    monkeypatch.setattr(toy.graph, "replay", lambda step: {"argmax": nothing})
    with pytest.raises(ModelError, match=r"cannot run a single token: .* not finite .* damaged"):
        toy.runner.warm_up()
