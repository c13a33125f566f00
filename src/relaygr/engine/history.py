"""A user's history as requests carry it: checked columns, and the digest chain that grows with them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from relaygr.cache.digests import DigestChain
from relaygr.core.errors import RequestError
from relaygr.core.ids import DEFAULT_TENANT, Fingerprint, Tenant, UserId, tenant, user_id
from relaygr.core.state import Ref
from relaygr.engine.columns import Int64, IntColumn, action_column, int64_column, time_column, whole_number

FEATURE_SCHEMA = 1
# Every column that enters the model: id, time, actions, clock offset.
RECORD_COLUMNS = 4
RECORD_BYTES = 8 * RECORD_COLUMNS
# The offset column of a profile slot and of an action token; no event can carry them, so neither ever passes
# for an event.
_SLOT_MARK = np.iinfo(np.int64).min
_ACTION_MARK = _SLOT_MARK + 1
MAX_UTC_OFFSET_S = 86_400
MAX_SEQUENCE = 1 << 62


@dataclass(frozen=True, slots=True)
class TokenForm:
    """How a model's prefix is made of events.

    Attributes:
        per_event: 1, or 2 where an action is a token of its own.
        provisional: newest events that are not part of it; the tokens before them then depend on the time
            of the event that follows.
    """

    per_event: int = 1
    provisional: int = 0


ONE_TOKEN = TokenForm()


@dataclass(slots=True)
class _Chain:
    """A digest chain and how many events of the history it holds."""

    key: tuple[bytes, int, int]
    digests: DigestChain
    upto: int


class UserHistory:
    """One user's profile slots and events, oldest first; a value: `append` returns a longer one.

    Attributes:
        tenant, user: whose it is.
        contextual: int64 [C], one value per profile slot of the model.
        items, timestamps, actions: int64 [h] each, times in seconds, not decreasing.
        utc_offset_s: added to every time before the clock is read.
        first_sequence: the user's event sequence number of `items[0]`; a store that drops old events
            counts them here, so that the window's anchor does not move.
    """

    __slots__ = (
        "_chain",
        "_ref",
        "actions",
        "contextual",
        "first_sequence",
        "items",
        "tenant",
        "timestamps",
        "user",
        "utc_offset_s",
    )

    def __init__(
        self,
        user: str,
        items: IntColumn,
        timestamps: IntColumn,
        actions: IntColumn | None = None,
        *,
        tenant_name: str = DEFAULT_TENANT,
        contextual: IntColumn = (),
        utc_offset_s: int = 0,
        first_sequence: int = 0,
    ) -> None:
        """Check and keep the columns; `actions` defaults to bit 0 for every event.

        Raises:
            RequestError: naming the field, the value and the limit.
        """
        self.tenant: Tenant = tenant(tenant_name)
        self.user: UserId = user_id(user)
        self.items = int64_column("items", items)
        self.timestamps = time_column("timestamps", timestamps, len(self.items))
        self.actions = action_column(actions, len(self.items))
        self.contextual = int64_column("contextual", contextual)
        self.utc_offset_s = whole_number("utc_offset_s", utc_offset_s, -MAX_UTC_OFFSET_S, MAX_UTC_OFFSET_S)
        self.first_sequence = whole_number("first_sequence", first_sequence, 0, MAX_SEQUENCE)
        self._chain: list[_Chain] = []
        self._ref: tuple[tuple[bytes, int, int], Ref] | None = None

    def __len__(self) -> int:
        return len(self.items)

    @property
    def sequence(self) -> int:
        """The user's event count so far, dropped events included."""
        return self.first_sequence + len(self.items)

    def append(
        self, items: IntColumn, timestamps: IntColumn, actions: IntColumn | None = None
    ) -> UserHistory:
        """This history with newer events behind it.

        Raises:
            RequestError: as the constructor, and for a first time before the last one here. An older event
                belongs into a new history: it changes the tokens behind it.
        """
        more = UserHistory.__new__(UserHistory)
        new_items = int64_column("items", items)
        new_times = time_column("timestamps", timestamps, len(new_items))
        new_actions = action_column(actions, len(new_items))
        if len(self) and len(new_items) and new_times[0] < self.timestamps[-1]:
            raise RequestError(
                "timestamps", f"{new_times[0]} is before the last event, {self.timestamps[-1]}"
            )
        more.tenant, more.user, more.contextual = self.tenant, self.user, self.contextual
        more.utc_offset_s, more.first_sequence = self.utc_offset_s, self.first_sequence
        more.items = _joined(self.items, new_items)
        more.timestamps = _joined(self.timestamps, new_times)
        more.actions = _joined(self.actions, new_actions)
        # The chain moves on: two successors of one history must not extend the same chain.
        more._chain = [chain] if (chain := self._take_chain()) is not None else []
        more._ref = None
        return more

    def newest(self, events: int) -> UserHistory:
        """Its newest `events` events, as a history that begins there; itself if it has no more."""
        dropped = len(self) - max(events, 0)
        if dropped <= 0:
            return self
        return UserHistory(
            self.user,
            self.items[dropped:],
            self.timestamps[dropped:],
            self.actions[dropped:],
            tenant_name=self.tenant,
            contextual=self.contextual,
            utc_offset_s=self.utc_offset_s,
            first_sequence=self.first_sequence + dropped,
        )

    def ref(self, model_fp: Fingerprint, page_tokens: int, start: int, form: TokenForm = ONE_TOKEN) -> Ref:
        """The prefix of profile and events from sequence number `start` on, by content, one record a token.

        Kept and extended across appends; only the first call for a model and anchor hashes everything.
        """
        key = (model_fp, page_tokens, start)
        if self._ref is not None and self._ref[0] == key:
            return self._ref[1]
        # Taken while it is extended: whoever else comes, or comes after a failure here, starts a new one.
        chain = self._take_chain()
        if chain is None or chain.key != key:
            chain = _Chain(key, self._seed(model_fp, page_tokens, start), start - self.first_sequence)
        stop = max(len(self.items) - form.provisional, chain.upto)
        chain.digests.extend(self._records(chain.upto, stop, form))
        chain.upto = stop
        ref = chain.digests.ref()
        self._ref = (key, ref)
        self._chain.append(chain)
        return ref

    def _take_chain(self) -> _Chain | None:
        """The chain, if nobody else has it; popping a list is one step for every thread."""
        try:
            return self._chain.pop()
        except IndexError:
            return None

    def _seed(self, model_fp: Fingerprint, page_tokens: int, start: int) -> DigestChain:
        digests = DigestChain(
            self.tenant, model_fp, FEATURE_SCHEMA, self.user, start, page_tokens, RECORD_BYTES
        )
        if len(self.contextual):
            records = np.zeros((len(self.contextual), RECORD_COLUMNS), "<i8")
            records[:, 0] = self.contextual
            records[:, 1] = np.arange(len(self.contextual))
            records[:, 3] = _SLOT_MARK
            digests.extend(records.tobytes())
            digests.close_segment()
        return digests

    def _records(self, first: int, stop: int, form: TokenForm) -> bytes:
        records = np.empty((stop - first, form.per_event, RECORD_COLUMNS), "<i8")
        records[:, 0, 0] = self.items[first:stop]
        records[:, 0, 1] = self.timestamps[first:stop]
        records[:, 0, 2] = self.actions[first:stop]
        records[:, 0, 3] = self.utc_offset_s
        if form.per_event == 2:
            records[:, 1] = records[:, 0]
            records[:, 0, 2] = 0  # an item token does not read the action
            records[:, 1, 3] = _ACTION_MARK
        if form.provisional:
            records[:, 0, 2] = self.timestamps[first + 1 : stop + 1]  # such models read no actions
        return records.tobytes()


def _joined(old: Int64, new: Int64) -> Int64:
    if not len(new):
        return old
    both = np.concatenate([old, new])
    both.flags.writeable = False
    return both
