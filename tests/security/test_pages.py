"""The pages that the server gives load nothing from elsewhere."""

from __future__ import annotations

import re

from octavo.entrypoints.openai.app import ROUTES
from octavo.entrypoints.openai.openapi import html_page


def test_docs_load_nothing() -> None:
    page = html_page(ROUTES)
    assert not re.search(r"<script|<iframe|<object|<embed|<link|@import|\bon\w+\s*=", page, re.I)
    assert not re.findall(r"""(?:src|href|action)\s*=\s*["']?(?:https?:)?//""", page, re.I)
