"""Prompts: which items of a history are in one, its tokens, and by what they are known in the cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from relaygr.cache.digests import DigestChain, blake2b_128
from relaygr.core.errors import RequestError
from relaygr.core.ids import DEFAULT_TENANT, Fingerprint, Tenant, UserId
from relaygr.core.state import Ref
from relaygr.engine.columns import Int64
from relaygr.engine.history import UserHistory
from relaygr.generation.catalogue.history import Unknown
from relaygr.generation.catalogue.index import ItemId
from relaygr.generation.catalogue.pinned import PinnedCatalogue
from relaygr.generation.catalogue.tokens import PromptTemplate, SidTokenMap
from relaygr.generation.requests import GenerateRequest
from relaygr.models.window import anchor, anchor_stride

_SCHEMA = 2  # one token id a record; what rankers keep has another
_RECORD_BYTES = 8
# No user has it in the name.
_NOBODY = "\0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A request to generate, or without `request` to encode a user's prompt ahead.

    Attributes:
        history: of the user that the request names; its items are the prompt.
        seen: items of all events of the user, in any order, for requests that exclude what was seen; None if
            `history` has them all.
        tenant: whose prompts without a user these are.
        unknown: what becomes of items that the catalogue does not know; None as the settings say.
    """

    request: GenerateRequest | None = None
    history: UserHistory | None = None
    seen: Int64 | None = None
    tenant: str = DEFAULT_TENANT
    unknown: Unknown | None = None

    def excluded(self) -> Sequence[ItemId] | Int64:
        """The items that `exclude_seen` keeps out of the answer."""
        request, history = self.request, self.history
        if request is None or not request.exclude_seen:
            return ()
        if request.history is not None:
            return request.history
        assert history is not None
        return history.items if self.seen is None else np.concatenate([self.seen, history.items])


@dataclass(frozen=True, slots=True)
class Prompt:
    """Tokens, and whose they are.

    Attributes:
        tokens: int64 [P].
        user: "" for a prompt without one.
        anchor: place in the user's history at which its window begins.
        shared: tokens at its head that other prompts begin with as well.
        unknown: items that the catalogue does not know and that were left out.
    """

    tokens: Int64
    tenant: Tenant
    user: str
    anchor: int = 0
    shared: int = 0
    unknown: int = 0

    def __len__(self) -> int:
        return len(self.tokens)

    def refs(self, model_fp: Fingerprint, page_tokens: int) -> tuple[Ref, ...]:
        """By what it is known in the cache; each is an alternative where the ones before are being written.

        A user's prompts are the user's, and wait for one another. One without a user is known by its first
        page, so that a longer one that begins like it finds it, and by its whole content otherwise.
        """
        records = self.tokens.astype("<i8").tobytes()
        if self.user:
            return (self._ref(model_fp, page_tokens, self.user, records),)
        first = records[: (self.shared + page_tokens) * _RECORD_BYTES]
        names = (f"{_NOBODY}{kind}{blake2b_128(data).hex()}" for kind, data in (("p", first), ("w", records)))
        return tuple(self._ref(model_fp, page_tokens, name, records) for name in names)

    def _ref(self, model_fp: Fingerprint, page_tokens: int, name: str, records: bytes) -> Ref:
        chain = DigestChain(
            self.tenant, model_fp, _SCHEMA, UserId(name), self.anchor, page_tokens, _RECORD_BYTES
        )
        chain.extend(records)
        return chain.ref()


def window_items(template: PromptTemplate, levels: int, max_tokens: int) -> int:
    """Most items of a prompt of at most `max_tokens`; 0 if the template leaves room for none."""
    around = len(template.before) + len(template.after)
    each = levels + len(template.item_before) + len(template.item_after)
    return max((max_tokens - around) // each, 0)


def prompt_of_items(
    pinned: PinnedCatalogue,
    tokens: SidTokenMap,
    template: PromptTemplate,
    items: Sequence[ItemId] | Int64,
    unknown: Unknown,
    max_tokens: int,
    stride_share: float,
    *,
    tenant: Tenant,
    user: str = "",
    first_sequence: int = 0,
) -> Prompt:
    """The newest items as a prompt; the window's start jumps, so that what is cached keeps its place.

    Raises:
        RequestError: an unknown item, where those are rejected; or the template leaves room for no item.
    """
    limit = window_items(template, pinned.index.levels, max_tokens)
    if not limit:
        raise RequestError("history", f"a prompt of {max_tokens} tokens has no room for an item")
    start = anchor(first_sequence + len(items), limit, anchor_stride(limit, stride_share))
    window = items[max(start - first_sequence, 0) :]
    ids: Sequence[ItemId] = window.tolist() if isinstance(window, np.ndarray) else window
    coded = pinned.history(ids, unknown)
    found = template.tokens(coded.codes, tokens)
    found.flags.writeable = False
    return Prompt(found, tenant, user, start, len(template.before), coded.skipped)
