"""The latency benchmark over a fake executor."""

from __future__ import annotations

from octavo.entrypoints.bench.latency import LatencyOptions, run
from tests.engine.fakes import fake_engine


def test_a_row_per_length_and_nothing_from_the_cache() -> None:
    engine = fake_engine()
    report = run(engine, LatencyOptions(input_lens=(8, 40), output_len=5, repeats=2))
    rows = report.results["latency"]
    assert [r["input_len"] for r in rows] == [8, 40]
    for row in rows:
        assert row["ttft_ms"] > 0
        assert 0 < row["inter_token_p50_ms"] <= row["inter_token_p99_ms"]
    stats = engine.stats()
    assert stats.prefix_hits == 0
    assert stats.generation_tokens == 4 + 4 * 5


def test_one_token_has_no_time_between() -> None:
    report = run(fake_engine(), LatencyOptions(input_lens=(8,), output_len=1, repeats=1))
    assert set(report.results["latency"][0]) == {"input_len", "ttft_ms"}
