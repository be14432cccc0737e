"""The server's own OpenAPI document, turned into requests by schemathesis: whatever is sent, it is
answered or refused, and never an error of the server's own making."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings

from tests.entrypoints.openai.live import Live, live
from tests.tiny_model import write_tiny_llama

schemathesis = pytest.importorskip("schemathesis")  # it needs Python 3.11

BROKEN = {500, 502, 504}
ADMIN = {"/pause", "/resume", "/reset_prefix_cache", "/abort", "/abort_requests"}
"""Run after the others: a paused engine answers nobody."""
NUM_EXAMPLES = 5000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    path = write_tiny_llama(tmp_path_factory.mktemp("model"))
    home = tmp_path_factory.mktemp("home")
    options = ("--distributed-executor-backend", "fake", "--max-model-len", "256")
    with live(str(path), *options, home=home) as server:
        yield server


@pytest.mark.slow
def test_five_thousand_examples(server: Live) -> None:
    """Spread evenly over all operations; those of an administrator come last."""
    statuses = run_all(server, NUM_EXAMPLES)
    assert sum(statuses.values()) >= NUM_EXAMPLES
    assert_well(server, statuses)


def test_some_examples_of_each(server: Live) -> None:
    assert_well(server, run_all(server, 0))


def assert_well(server: Live, statuses: Counter[int]) -> None:
    print(dict(statuses))
    assert not BROKEN & set(statuses)
    assert statuses[200] > 0
    assert statuses[400] > 0
    server.until_idle()
    assert server.get("/health").status == 200


def run_all(server: Live, num_examples: int) -> Counter[int]:
    """At least so many examples, and five of each operation. Returns how often each status came."""
    schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    operations = [result.ok() for result in schema.get_all_operations()]
    assert len(operations) >= 10
    operations.sort(key=lambda operation: (operation.path in ADMIN, operation.path == "/resume"))
    statuses: Counter[int] = Counter()
    modes = schemathesis.generation.modes.GenerationMode
    for operation in operations:
        each = max(5, -(-num_examples // len(operations)))
        num_before = sum(statuses.values())
        for mode in (modes.POSITIVE, modes.NEGATIVE):
            _run(operation, mode, each, statuses)
        # An operation without parameters has one example, which is then sent again.
        while num_examples and sum(statuses.values()) - num_before < each:
            statuses[operation.Case().call().status_code] += 1
    return statuses


def _run(operation: Any, mode: Any, num: int, statuses: Counter[int]) -> None:
    @seed(0)
    @settings(
        max_examples=num,
        phases=[Phase.generate],
        database=None,
        deadline=None,
        derandomize=False,
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def send(case: Any) -> None:
        response = case.call(timeout=30)
        statuses[response.status_code] += 1
        assert response.status_code not in BROKEN, (case.as_curl_command(), response.text)

    try:
        send()
    except schemathesis.errors.InvalidSchema:
        raise
    except Exception as error:
        if "Unsatisfiable" not in type(error).__name__:  # nothing can be wrong with no parameters
            raise
