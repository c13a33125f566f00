"""Embedding tables that ids index directly, with a stated answer for ids outside them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from relaygr.core.errors import RequestError
from relaygr.models.hashing import hash_rows
from relaygr.models.initial import normal
from relaygr.models.switches import Table
from relaygr.models.tokens.interface import Int64

MISSING = -1  # in a profile slot: no value, a vector of zeros


class DirectTable(nn.Module):
    """ids [n] -> vectors [n, dim]."""

    def __init__(self, table: Table, dim: int) -> None:
        super().__init__()
        self.table = table
        self.weight = normal(table.rows, dim, std=dim**-0.5)

    def forward(self, ids: Tensor) -> Tensor:
        """int64 [n] -> [n, dim].

        Raises:
            RequestError: an unknown id, with a table that rejects them.
        """
        table = self.table
        known = (ids >= table.first) & (ids < table.rows)
        if bool(known.all()):
            return F.embedding(ids, self.weight)
        if table.unknown == "reject":
            raise refusal(table.name, table, int(ids[~known][0]))
        if table.unknown == "hash":
            other = table.first + hash_rows(ids, table.rows - table.first, range(1))[0]
        else:
            other = torch.full_like(ids, table.unknown_row)
        vectors = F.embedding(torch.where(known, ids, other), self.weight)
        return vectors * known[:, None] if table.unknown == "default" else vectors


def count_unknown(field: str, table: Table, ids: Int64) -> int:
    """How many of `ids` the table does not hold.

    Raises:
        RequestError: there are some and the table rejects them.
    """
    if not len(ids) or (int(ids.min()) >= table.first and int(ids.max()) < table.rows):
        return 0
    unknown = (ids < table.first) | (ids >= table.rows)
    if table.unknown == "reject":
        raise refusal(field, table, int(ids[unknown][0]))
    return int(unknown.sum())


def refusal(field: str, table: Table, value: int) -> RequestError:
    return RequestError(
        field, f"{value} is not in table {table.name!r}, which holds [{table.first}, {table.rows - 1}]"
    )
