"""Score the requests of one user in time order: events enter a private store once, candidates read it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from relaygr.core.errors import ConfigError
from relaygr.data.dataset import Int64s
from relaygr.data.split import EvalRequest
from relaygr.kernels.interface import Kernel
from relaygr.memory.layout import KvLayout
from relaygr.memory.stores import PrivateKv
from relaygr.models.ranker import Ranker, RowInput
from relaygr.models.window import PAGE_EVENTS, anchor, anchor_stride
from relaygr.training.metrics import Floats

ANCHOR_STRIDE = 0.25
MAX_ROWS = 2048  # candidates of one forward pass
MAX_BIAS_PAIRS = 1 << 20  # (candidate, event) pairs of one pass when every pair has a bias of its own


@dataclass(frozen=True, slots=True, eq=False)
class UserEvents:
    """The whole history of a user, int64 [h] each, oldest first."""

    items: Tensor
    timestamps: Tensor
    actions: Tensor

    @classmethod
    def of(cls, history: tuple[Int64s, Int64s, Int64s]) -> UserEvents:
        # Copies, because the columns of a dataset are read-only maps of files.
        return cls(*(torch.from_numpy(np.array(column)) for column in history))


@dataclass(frozen=True, slots=True, eq=False)
class _Piece:
    """Consecutive candidates of one request."""

    request: EvalRequest
    candidates: Tensor


class RankerScorer:
    """First-task logits of a model for requests of one user after another.

    Histories longer than the model's window are cut by the anchoring rule of `models.window`.

    Args:
        max_history: events seen at most, to look at less than the model could; None takes all it can.
        stride: events that a jump of the window's start drops. None takes the share that serving takes; with
            1 a request sees exactly the newest `max_history` events, and a long history is encoded anew for
            every request.

    Raises:
        ConfigError: the model reads profile slots, which datasets do not have.
    """

    def __init__(
        self,
        model: Ranker,
        kernel: Kernel,
        max_history: int | None = None,
        stride: int | None = None,
    ) -> None:
        self.model, self.kernel = model, kernel
        config = model.config
        if config.contextual:
            raise ConfigError("model.contextual", f"{config.contextual}: datasets have no profile columns")
        # Requests at several times can share a pass if a row is one token and depends on no query.
        self._reuses = config.cacheable == "append"
        self._shares = self._reuses and config.tokens_per_event == 1 and not config.provisional
        self.limit = config.max_history if max_history is None else min(max_history, config.max_history)
        if stride is not None and not 1 <= stride <= self.limit:
            raise ValueError(f"stride: {stride} must be in [1, {self.limit}]")
        self.stride = anchor_stride(self.limit, ANCHOR_STRIDE) if stride is None else stride
        layout = KvLayout(
            config.num_layers,
            config.num_heads,
            config.qk_dim,
            config.v_dim,
            model.compute_dtype,
            PAGE_EVENTS,
        )
        with torch.inference_mode():
            self._store = PrivateKv(layout, config.prefix_tokens(self.limit + config.provisional))

    @torch.inference_mode()
    def score(
        self, user: UserEvents, requests: Sequence[EvalRequest], candidates: Sequence[Int64s]
    ) -> list[Floats]:
        """Scores [m] of each request's candidates.

        Args:
            requests: all of this user, in time order.
            candidates: int64 [m] for each request.
        """
        if not requests:
            return []
        scores: list[Floats] = []
        start, cached = -1, 0
        for pieces in self._passes(requests, candidates):
            end = pieces[-1].request.history_end
            begin = anchor(end, self.limit, self.stride)
            if begin != start or not self._reuses:
                start, cached = begin, 0
                self._store.reset()
            row = self._row(user, slice(start, end), pieces, cached)
            logits = self.model([row], self.kernel)[0][:, 0].to(torch.float64).numpy()
            scores += np.split(logits, np.cumsum([len(piece.candidates) for piece in pieces])[:-1])
            cached = self.model.config.prefix_tokens(end - start)
        self._store.reset()
        return np.split(np.concatenate(scores), np.cumsum([len(ids) for ids in candidates])[:-1])

    def _row(self, user: UserEvents, window: slice, pieces: Sequence[_Piece], cached: int) -> RowInput:
        query: int | Tensor = pieces[0].request.time_s
        high = None
        if len(pieces) > 1:
            lengths = torch.tensor([len(piece.candidates) for piece in pieces])
            query = torch.tensor([piece.request.time_s for piece in pieces]).repeat_interleave(lengths)
            ends = torch.tensor([piece.request.history_end - window.start for piece in pieces])
            high = ends.repeat_interleave(lengths)
        return RowInput(
            contextual=torch.zeros(0, dtype=torch.int64),
            items=user.items[window],
            timestamps=user.timestamps[window],
            actions=user.actions[window],
            candidates=torch.cat([piece.candidates for piece in pieces]),
            query_time=query,
            cached=cached,
            store=self._store,
            candidate_high=high,
        )

    def _passes(
        self, requests: Sequence[EvalRequest], candidates: Sequence[Int64s]
    ) -> Iterator[list[_Piece]]:
        """Pieces that share one forward pass: one anchor, at most `MAX_ROWS` candidates."""
        group: list[_Piece] = []
        rows = 0
        for request, ids in zip(requests, candidates, strict=True):
            begin = anchor(request.history_end, self.limit, self.stride)
            visible = request.history_end - begin
            room = MAX_ROWS
            if getattr(self.model.config, "score_time_bias", False):
                room = min(MAX_ROWS, max(MAX_BIAS_PAIRS // max(visible, 1), 1))
            for first in range(0, len(ids), MAX_ROWS):
                piece = _Piece(request, torch.from_numpy(np.array(ids[first : first + MAX_ROWS])))
                moved = group and begin != anchor(group[0].request.history_end, self.limit, self.stride)
                alone = moved or not self._shares
                if group and (alone or rows + len(piece.candidates) > room):
                    yield group
                    group, rows = [], 0
                group.append(piece)
                rows += len(piece.candidates)
        if group:
            yield group
