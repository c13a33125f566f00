"""Names for the integers, strings and bytes that cross rooms, and their limits."""

from __future__ import annotations

from hashlib import blake2b
from typing import NewType

from relaygr.core.errors import RequestError

Tenant = NewType("Tenant", str)
UserId = NewType("UserId", str)
Fingerprint = NewType("Fingerprint", bytes)

DEFAULT_TENANT = Tenant("default")
MAX_NAME_BYTES = 256


def check_name(field: str, value: str) -> str:
    """Return `value` if it is a non-empty UTF-8 string of at most 256 bytes without NUL.

    Raises:
        RequestError: naming `field`, the value and the limit.
    """
    if not isinstance(value, str):
        raise RequestError(field, f"must be a string, got {type(value).__name__}")
    if not value:
        raise RequestError(field, "must not be empty")
    if "\x00" in value:
        raise RequestError(field, f"{value[:32]!r} contains NUL")
    try:
        size = len(value.encode("utf-8"))
    except UnicodeEncodeError as error:
        raise RequestError(field, f"{value!r} is not valid Unicode: {error.reason}") from error
    if size > MAX_NAME_BYTES:
        raise RequestError(field, f"{value[:32]!r}... has {size} bytes, limit {MAX_NAME_BYTES}")
    return value


def tenant(value: str) -> Tenant:
    return Tenant(check_name("tenant", value))


def user_id(value: str) -> UserId:
    return UserId(check_name("user", value))


def session_key(tenant: str, user: str) -> str:
    """What a user is routed by: hexadecimal BLAKE2b-128 of the tenant, a zero byte and the user's id."""
    # What is not valid Unicode has a key too: whoever serves it says what is wrong.
    named = f"{tenant}\0{user}".encode("utf-8", "surrogatepass")
    return blake2b(named, digest_size=16).hexdigest()
