"""What the books keep per identity: the content and where it lies."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from relaygr.cache.pages import PageIds
from relaygr.core.ids import Fingerprint, Tenant, UserId
from relaygr.core.state import Ref


class Identity(NamedTuple):
    """Equal identities share one entry; content is compared by digests and records."""

    tenant: Tenant
    user: UserId
    model_fp: Fingerprint
    schema: int
    anchor: int


def identity(ref: Ref) -> Identity:
    return Identity(ref.tenant, ref.user, ref.model_fp, ref.schema, ref.anchor)


class Entry(msgspec.Struct, eq=False):
    """One immutable version of a user's state; only `dirty_tail` ever changes.

    Attributes:
        ref: the content that the pages hold.
        ids: pages in token order.
        dirty_tail: slots behind the last token may hold rows of a writer that has not published.
        rounded_tokens: behind these no row came back rounded from a lower tier.
    """

    ref: Ref
    ids: PageIds
    dirty_tail: bool = False
    rounded_tokens: int = 0

    @property
    def pages(self) -> tuple[int, ...]:
        return tuple(self.ids.tolist())

    @property
    def tokens(self) -> int:
        return self.ref.tokens
