"""`encrypted_content` of reasoning items: the reasoning as a client carries it, without reading it.

It is for clients that keep conversations themselves and leave `content` out of what they send back.
Nothing is encrypted: `content` beside it has the same text.
"""

from __future__ import annotations

import base64

_MARK = "octavo-1:"


def carried(text: str) -> str:
    """`encrypted_content` of this text."""
    return _MARK + base64.b64encode(text.encode()).decode()


def text_of(encrypted_content: str) -> str | None:
    """The text; None if `carried` did not make this."""
    mark, data = encrypted_content[: len(_MARK)], encrypted_content[len(_MARK) :]
    try:
        return base64.b64decode(data, validate=True).decode() if mark == _MARK else None
    except ValueError:  # no base64, or no UTF-8
        return None
