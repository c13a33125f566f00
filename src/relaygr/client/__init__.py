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
from relaygr.client.door import Door
from relaygr.client.errors import (
    BadAnswerError,
    ClientError,
    DeadlineExceededError,
    OverloadedError,
    RequestRejectedError,
    UnavailableError,
)
from relaygr.client.retry import RetryPolicy
from relaygr.client.status import Status
from relaygr.client.sync import Client

__all__ = [
    "Appended",
    "AsyncClient",
    "BadAnswerError",
    "Client",
    "ClientError",
    "DeadlineExceededError",
    "Deleted",
    "Door",
    "Health",
    "Hint",
    "History",
    "Limits",
    "Model",
    "OverloadedError",
    "PrefixSignal",
    "Profile",
    "Ranking",
    "Reloaded",
    "RequestRejectedError",
    "RetryPolicy",
    "Status",
    "UnavailableError",
    "UserState",
    "history",
]
