"""Every test of a call runs with both clients."""

from __future__ import annotations

import pytest
from cascade_ask import Both
from client_server import Ask


@pytest.fixture(params=[False, True], ids=["sync", "async"])
def ask(request: pytest.FixtureRequest) -> Ask:
    return Ask(request.param)


@pytest.fixture(params=[False, True], ids=["sync", "async"])
def both(request: pytest.FixtureRequest) -> Both:
    return Both(request.param)
