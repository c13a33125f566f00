"""Stores of users' histories: the contract is in `interface.py`; `open_store` opens one by its URL."""

from relaygr.data.stores.interface import (
    Appended,
    EventBatch,
    HistoryStore,
    Profile,
    Source,
    StoredHistory,
)
from relaygr.data.stores.open import open_store

__all__ = ["Appended", "EventBatch", "HistoryStore", "Profile", "Source", "StoredHistory", "open_store"]
