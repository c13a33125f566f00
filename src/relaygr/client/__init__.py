"""The typed client: HTTP only, without the engine's dependencies."""

from relaygr.client.aio import AsyncClient
from relaygr.client.answers import (
    Appended,
    Deleted,
    Health,
    Hint,
    Limits,
    Model,
    PrefixSignal,
    Profile,
    Ranking,
    Reloaded,
    UserState,
)
from relaygr.client.calls import History, history
from relaygr.client.cascade import Cascade, Lap
from relaygr.client.door import Door
from relaygr.client.errors import (
    BadAnswerError,
    ClientError,
    DeadlineExceededError,
    OverloadedError,
    RequestRejectedError,
    UnavailableError,
)
from relaygr.client.generation import Generated, Generation
from relaygr.client.recommendation import Admission, Recommendation, Signal, Timings
from relaygr.client.retry import RetryPolicy
from relaygr.client.slate import Shown, Slate, SlateList, SlatePick, shown
from relaygr.client.status import Status
from relaygr.client.sync import Client
from relaygr.client.sync_cascade import SyncCascade, SyncLap

__all__ = [
    "Admission",
    "Appended",
    "AsyncClient",
    "BadAnswerError",
    "Cascade",
    "Client",
    "ClientError",
    "DeadlineExceededError",
    "Deleted",
    "Door",
    "Generated",
    "Generation",
    "Health",
    "Hint",
    "History",
    "Lap",
    "Limits",
    "Model",
    "OverloadedError",
    "PrefixSignal",
    "Profile",
    "Ranking",
    "Recommendation",
    "Reloaded",
    "RequestRejectedError",
    "RetryPolicy",
    "Shown",
    "Signal",
    "Slate",
    "SlateList",
    "SlatePick",
    "Status",
    "SyncCascade",
    "SyncLap",
    "Timings",
    "UnavailableError",
    "UserState",
    "history",
    "shown",
]
