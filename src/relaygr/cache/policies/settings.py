"""What the replacement policies can be told."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PolicySettings:
    """Knobs of all policies; each reads its own.

    Attributes:
        first_touch_weight: of `gd_cost`, what one visit counts against `freq_cap` at most.
        freq_cap: of `gd_cost`, visits that count.
        ghost_entries: keys that are not here and yet remembered, where a policy remembers.
        ghost_halve_ops: counted visits are halved each time so many have come.
        promote_at: of `s3fifo`, visits that take an entry from the small queue to the main one.
        small_share: of `s3fifo`, the small queue's part of the capacity.
        protected_share: of `slru` and the main part of `wtinylfu`, what entries visited again may take.
        window_share: of `wtinylfu`, the newcomers' part. The usual 1 % is for traffic without sessions: where
            a user comes back within minutes, the window must outlast a session.
        resident_share: of `lirs`, the part for entries that are not known to come back soon.
        growth_tokens, late_tokens: of `tlru`, by how much a history grows between two visits, and how many
            tokens a request can compute in time.
    """

    first_touch_weight: float = 0.5
    freq_cap: int = 4
    ghost_entries: int = 131_072
    ghost_halve_ops: int = 200_000
    promote_at: int = 1
    small_share: float = 0.1
    protected_share: float = 0.8
    window_share: float = 0.2
    resident_share: float = 0.01
    growth_tokens: int = 19
    late_tokens: int = 512
