"""What API keys may hold of something that all of them share: streams, uploads, bytes of files.

A key may take more as long as it has no more than it leaves free (Choudhury and Hahne, "Dynamic
Queue Length Thresholds for Shared-Memory Packet Switches", IEEE/ACM Transactions on Networking
6(2), 1998): one alone comes to a half, and `n` that take turns to an (n + 1)th each. However many
there are, one that has nothing finds a place where there is any.
"""

from __future__ import annotations


def exceeds_share(own: int, total: int, limit: int, amount: int = 1) -> bool:
    """Would a key hold more than is free now?

    Args:
        own: what it holds.
        total: what all hold.
        limit: what all may hold.
        amount: what it wants besides.
    """
    return own + amount > limit - total
