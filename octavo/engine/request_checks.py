"""What a request says besides prompt and parameters: its id, its priority, its salt."""

from __future__ import annotations

from octavo.errors import RequestError, shown

MAX_REQUEST_ID_LENGTH = 256
MAX_CACHE_SALT_LENGTH = 128
PRIORITY_MIN, PRIORITY_MAX = -(2**31), 2**31 - 1


def check_priority(priority: object) -> None:
    """Raise RequestError for a priority out of range."""
    if type(priority) is not int or not PRIORITY_MIN <= priority <= PRIORITY_MAX:
        raise RequestError(
            f"priority={shown(priority)} must be an integer in {PRIORITY_MIN}…{PRIORITY_MAX}",
            param="priority",
        )


def check_request_id(request_id: object) -> None:
    """Raise RequestError for an id that is no string, too long or empty."""
    if not isinstance(request_id, str) or not 0 < len(request_id) <= MAX_REQUEST_ID_LENGTH:
        raise RequestError(
            f"request_id={shown(request_id)} must be a string of 1…{MAX_REQUEST_ID_LENGTH} "
            "characters",
            param="request_id",
        )
    check_unicode("request_id", request_id)


def check_cache_salt(salt: object) -> None:
    """Raise RequestError for a salt that is neither None nor a string of the right length."""
    if salt is None:
        return
    if not isinstance(salt, str) or not 0 < len(salt) <= MAX_CACHE_SALT_LENGTH:
        raise RequestError(
            f"cache_salt={shown(salt)} must be a string of 1…{MAX_CACHE_SALT_LENGTH} characters, "
            "or None for the shared cache",
            param="cache_salt",
        )
    check_unicode("cache_salt", salt)


def check_unicode(name: str, text: str) -> None:
    """Raise RequestError for half a surrogate pair."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise RequestError(
            f"{name} holds a lone surrogate at character {error.start}: not valid Unicode",
            param=name,
        ) from None
