"""Which published implementation wrote a checkpoint, told by names and never by shapes."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from relaygr.core.errors import ConfigError
from relaygr.models.imports.names import Source

NvidiaLayout = Literal["fused", "native", "inference"]

META_LAYERS = "_hstu_transducer._stu_module._stu_layers."
RESEARCH_LAYERS = "_hstu._attention_layers."
NVIDIA_LAYERS = "_hstu_block._attention_layers."

_MARKS: dict[Source, str] = {"meta": META_LAYERS, "research": RESEARCH_LAYERS, "nvidia": NVIDIA_LAYERS}
_TITLES: dict[Source, str] = {
    "meta": "a Meta production checkpoint",
    "research": "a Meta research checkpoint",
    "nvidia": "an NVIDIA checkpoint",
}
_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Detected:
    """Whose checkpoint it is; `nvidia` is the kind of its layers."""

    source: Source
    nvidia: NvidiaLayout | None = None

    @property
    def title(self) -> str:
        if self.nvidia is None:
            return _TITLES[self.source]
        return f"an NVIDIA {self.nvidia} checkpoint"

    @property
    def projection(self) -> str:
        """How the rows of the joint projection are ordered."""
        return "per_head" if self.nvidia == "native" else "block"


def detect(where: str, names: Iterable[str], wanted: Source) -> Detected:
    """The source of a state dict.

    Raises:
        ConfigError: it is of another source than `wanted`, of several, of none that is known, or of a kind
            that its names do not tell.
    """
    names = list(names)
    found: list[Source] = [one for one, mark in _MARKS.items() if any(n.startswith(mark) for n in names)]
    if len(found) > 1:
        raise ConfigError(where, f"holds layers of several sources: {', '.join(found)}")
    if not found:
        raise ConfigError(where, _unknown(names))
    detected = Detected(found[0], _nvidia(where, names) if found[0] == "nvidia" else None)
    if detected.source != wanted:
        raise ConfigError(
            where, f"this is {detected.title}, --from {detected.source} (--from {wanted} was given)"
        )
    return detected


def _unknown(names: list[str]) -> str:
    if any(re.match(r"layers\.\d+\.uvqk\.weight$", name) for name in names):
        return "this is a model of this project already; it needs no import"
    shown = ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
    marks = ", ".join(f"{mark}N ({source})" for source, mark in _MARKS.items())
    has = shown or "nothing"
    return f"no known checkpoint: none of its {len(names)} names begins with {marks}; it has {has}"


def _nvidia(where: str, names: list[str]) -> NvidiaLayout:
    """Native and inference layers have the same projection by name and shape; their output norms differ."""
    found = (re.match(re.escape(NVIDIA_LAYERS) + r"\d+\.(.*)", name) for name in names)
    tails = {match[1] for match in found if match}
    fused = any(tail.startswith("_linear_uvqk_") for tail in tails)
    dotted = any(tail.startswith("_linear_uvqk.") for tail in tails)
    native = any(tail.startswith("_output_ln_dropout_mul.") for tail in tails)
    inference = any(tail.startswith("_output_layernorm_") for tail in tails)
    if fused and not dotted and not native:
        return "fused"
    if dotted and not fused and native != inference:
        return "native" if native else "inference"
    raise ConfigError(
        where,
        "an NVIDIA checkpoint whose layers are neither fused (_linear_uvqk_weight, _output_layernorm_*), "
        "native (_linear_uvqk.weight, _output_ln_dropout_mul.*) nor of the inference module "
        "(_linear_uvqk.weight, _output_layernorm_*); the order of the projection's rows cannot be told",
    )
