"""Keys and values as one kind of prefix among others."""

from __future__ import annotations

from dataclasses import dataclass

from relaygr.cache.digests import longest_match
from relaygr.core.state import Ref


@dataclass(frozen=True, slots=True)
class KvPrefix:
    """What one tier has of a user: good for any content that begins like it, as far as the two agree.

    Attributes:
        ref: its content.
        nbytes: that having it where it can be read takes, beyond what is there already.
    """

    ref: Ref
    nbytes: int

    def valid_for(self, ref: Ref) -> int:
        return longest_match(self.ref, ref)
