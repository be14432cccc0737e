"""Settings for every test."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# The same examples on every run, and no verdict by the clock: the machine may be busy.
settings.register_profile(
    "octavo",
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("octavo")
