"""Somebody else's application on the same cluster."""

from __future__ import annotations

from ray import serve
from starlette.requests import Request


class Other:
    async def __call__(self, request: Request) -> str:
        return "other"


app = serve.deployment(Other, ray_actor_options={"num_cpus": 0.01}).bind()
