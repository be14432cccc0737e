"""Whether a client takes what is gzipped."""

from __future__ import annotations


def takes_gzip(accept_encoding: str) -> bool:
    """Read an `Accept-Encoding` header (RFC 9110, section 12.5.3): gzip is named, and not refused
    by a weight of 0."""
    for choice in accept_encoding.lower().split(","):
        name, _, weight = choice.partition(";")
        if name.strip() in ("gzip", "x-gzip"):
            return weight.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False
