from __future__ import annotations

import pytest

from octavo.entrypoints.web.encoding import takes_gzip


@pytest.mark.parametrize(
    ("header", "takes"),
    [
        ("gzip", True),
        ("br, GZIP ; q=0.5", True),
        ("x-gzip", True),
        ("gzip;q=0, br", False),
        ("gzip; q=0.000", False),
        ("br, deflate", False),
        ("notgzip", False),
        ("", False),
    ],
)
def test_gzip(header: str, takes: bool) -> None:
    assert takes_gzip(header) is takes
