"""What is compared: ways to serve the same requests, as settings of one simulator."""

from __future__ import annotations

import msgspec

from relaygr.core.errors import ConfigError


class Variant(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One way to serve.

    Attributes:
        relay: prefixes are computed ahead; otherwise every ranking reads its history inline.
        reuse: what was computed for a user stays for the next request.
        ladder: a history that would be late is shortened; otherwise all of it is read, however late.
        admit_all: the trigger asks neither for risk nor for time.
        random_owner: the two laps of a request go to any instance each.
        host: instances have a host tier.
        remote: ranking fetches a prefix that another instance has over the network.
    """

    name: str
    relay: bool = True
    reuse: bool = True
    ladder: bool = True
    admit_all: bool = False
    random_owner: bool = False
    host: bool = True
    remote: bool = False


INLINE_FULL = Variant(name="inline_full", relay=False, reuse=False, ladder=False, host=False)
RELAY_FULL = Variant(name="relay_full")

VARIANTS: tuple[Variant, ...] = (
    INLINE_FULL,
    Variant(name="inline_truncated", relay=False, reuse=False, host=False),
    Variant(name="inline_cached", relay=False, ladder=False),
    RELAY_FULL,
    Variant(name="relay_no_trigger", admit_all=True),
    Variant(name="relay_no_affinity", random_owner=True),
    Variant(name="relay_no_host", host=False),
    Variant(name="remote_fetch", random_owner=True, remote=True),
)


def variant(name: str) -> Variant:
    """By name.

    Raises:
        ConfigError: there is none of this name.
    """
    for one in VARIANTS:
        if one.name == name:
            return one
    raise ConfigError("--variant", f"{name!r} is not one of {', '.join(one.name for one in VARIANTS)}")
