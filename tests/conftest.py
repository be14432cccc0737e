"""Settings for every test."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

# The same examples on every run, and no verdict by the clock: the machine may be busy.
settings.register_profile(
    "octavo",
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("octavo")

# Hypothesis also draws constants that stand in the modules imported so far, so that an example
# would depend on which files this worker ran before. No setting turns that off.
providers._get_local_constants = lambda: providers._local_constants


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The default model's GGUF file, from the cache or fetched by our own puller. A test that uses
    it is marked `model`."""
    from octavo.models.hub import locate_model

    return locate_model("smollm2-135m")


@pytest.fixture(scope="session")
def gemma3_path() -> Path:
    """Gemma-3-270m's GGUF file, from the cache or fetched by our own puller. A test that uses it is
    marked `model`."""
    from octavo.models.hub import locate_model

    return locate_model("gemma3-270m")
