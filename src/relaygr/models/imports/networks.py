"""ReLU networks of the NVIDIA source, which come in two kinds, told by their names.

torchrec's MLP (`_mlp._mlp.{i}._linear` behind the wrapper) activates behind every layer, the last one
included, so that logits are never negative. A plain sequence (`_mlp.{2 i}`) has nothing behind its last.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import torch

from relaygr.core.errors import ConfigError
from relaygr.models.imports.ledger import Ledger
from relaygr.models.imports.notes import Notes


@dataclass(frozen=True, slots=True)
class Network:
    """A ReLU network as stored: its linear layers' names, its sizes and whether a ReLU ends it."""

    layers: tuple[str, ...]
    sizes: tuple[int, ...]
    last: bool


def move_network(
    ledger: Ledger, prefix: str, target: str, inputs: int | None = None, biased: bool = True
) -> Network:
    """Move the linear layers of a network in their order; without biases, zeros stand for them."""
    nested = re.escape(prefix) + r"_mlp\._mlp\.(\d{1,3})\._linear\.(weight|bias)"
    plain = re.escape(prefix) + r"_mlp\.(\d{1,3})\.(weight|bias)"
    last = bool(ledger.names(nested))
    found = (
        re.fullmatch(nested if last else plain, name) for name in ledger.names(nested if last else plain)
    )
    places = [int(match[1]) for match in found if match]
    if not places:
        raise ConfigError(ledger.where, f"missing {prefix}_mlp.*: no linear layer of this network is there")
    layers = tuple(
        f"{prefix}_mlp._mlp.{i}._linear" if last else f"{prefix}_mlp.{i}"
        for i in range(0, max(places) + 1, 1 if last else 2)
    )
    sizes = _sizes(ledger, layers, inputs)
    for i, name in enumerate(layers):
        ledger.move(f"{name}.weight", f"{target}.layers.{i}.weight", (sizes[i + 1], sizes[i]))
        if biased:
            ledger.move(f"{name}.bias", f"{target}.layers.{i}.bias", (sizes[i + 1],))
        else:
            ledger.state[f"{target}.layers.{i}.bias"] = torch.zeros(sizes[i + 1])
    return Network(layers, sizes, last)


def move_input_network(
    ledger: Ledger, prefix: str, target: str, size: int, given: int | None
) -> Network | None:
    """A network of two layers from a table's width to the model's, if it is there or `given` a width."""
    if not ledger.any(prefix):
        if given is not None and given > 0:
            ledger.problems.append(f"missing {prefix}_mlp.*, which the configuration gives the width {given}")
        return None
    network = move_network(ledger, prefix, target)
    if len(network.layers) != 2 or network.sizes[-1] != size:
        ledger.problems.append(f"{prefix} has the sizes {list(network.sizes)}, wanted two layers to {size}")
    if given is not None and given != network.sizes[0]:
        ledger.problems.append(
            f"{prefix}: {given} in the configuration, but {network.layers[0]}.weight reads {network.sizes[0]}"
        )
    return network


def _sizes(ledger: Ledger, layers: tuple[str, ...], inputs: int | None) -> tuple[int, ...]:
    """Input width of the first layer and output width of each; 0 where a shape tells nothing."""
    first = inputs or ledger.axis(f"{layers[0]}.weight", 1, 2).value or 0
    outputs = (
        ledger.axis(f"{name}.weight", 0, 2).value or ledger.axis(f"{name}.bias", 0, 1).value
        for name in layers
    )
    return (first, *(one or 0 for one in outputs))


def one_kind(ledger: Ledger, networks: list[Network], notes: Notes) -> bool:
    kinds = {network.last for network in networks}
    if len(kinds) > 1:
        ledger.problems.append(
            "networks of both published kinds: " + ", ".join(network.layers[-1] for network in networks)
        )
    if True in kinds:
        notes.warnings.append("the head ends with a ReLU, as published: logits are never negative")
    return True in kinds
