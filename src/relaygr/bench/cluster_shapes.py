"""The shapes that `bench cluster` can deploy, by name."""

from __future__ import annotations

from relaygr.bench.cluster_envoy import EnvoyShape
from relaygr.bench.cluster_gateway import GatewayShape
from relaygr.bench.cluster_peers import PeersShape
from relaygr.bench.cluster_ray import RayShape
from relaygr.bench.cluster_shape import Shape

SHAPES: dict[str, type[Shape]] = {
    "gateway": GatewayShape,
    "peers": PeersShape,
    "envoy": EnvoyShape,
    "ray": RayShape,
}
