"""How logits processor classes are found."""

from __future__ import annotations

from importlib.metadata import EntryPoint, EntryPoints

import pytest

from octavo.errors import ConfigError
from octavo.sample import logits_processor
from octavo.sample.logits_processor import (
    ENTRY_POINT_GROUP,
    load_logits_processors,
    name_of,
)
from tests.sample.processors import Sharpen, Shift

HERE = "tests.sample.processors"


def test_by_name_each_once() -> None:
    assert load_logits_processors([]) == []
    names = [f"{HERE}:Shift", f"{HERE}:Sharpen", f"{HERE}:Shift"]
    assert load_logits_processors(names) == [Shift, Sharpen]


def test_installed_ones_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    def installed(*, group: str) -> EntryPoints:
        assert group == ENTRY_POINT_GROUP == "octavo.logits_processors"
        return EntryPoints(
            [EntryPoint("b", f"{HERE}:Shift", group), EntryPoint("a", f"{HERE}:Sharpen", group)]
        )

    monkeypatch.setattr(logits_processor, "entry_points", installed)
    assert load_logits_processors([f"{HERE}:Shift"]) == [Sharpen, Shift]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("no.such.module:Class", "cannot be loaded (ModuleNotFoundError"),
        (f"{HERE}:Nothing", "cannot be loaded (AttributeError"),
        (HERE, "cannot be loaded (AttributeError"),
        ("", "cannot be loaded (ValueError"),
        (f"{HERE}:np.ndarray", "is not a subclass of octavo.sample.logits_processor"),
        (f"{HERE}:Any", "is not a subclass"),
    ],
)
def test_refused(name: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_logits_processors([name])
    assert says in str(caught.value)


def test_classes_stand_for_their_names() -> None:
    assert name_of(Shift) == f"{HERE}:Shift"
    assert name_of("a.b:C") == "a.b:C"
