"""The switches in which published HSTU layers and their inputs differ."""

from __future__ import annotations

from typing import Literal

import msgspec

from relaygr.core.errors import ConfigError


class LayerSwitches(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How one layer computes.

    Attributes:
        input_norm: layer norm with scale and shift, or without.
        uvqk_bias: the projection has a bias.
        silu_on: which parts of the projection are activated.
        alpha: score scale; 0 stands for 1 / sqrt(A).
        relative_bias: a learned score bias by distance in places, or in places and in time.
        output_norm: layer norm over H E with or without scale and shift, or per head with one scale and one
            shift a head.
        concat: what the output projection reads, with z the normalised attention: u, o and u z side by side;
            u, z and u z; or u z alone.
        out_bias: the output projection has a bias.
        residual: the layer's input is added to its output.
    """

    input_norm: Literal["affine", "plain"] = "affine"
    uvqk_bias: bool = True
    silu_on: Literal["u", "uvqk", "none"] = "u"
    alpha: float = 0.0
    relative_bias: Literal["none", "position", "position_time"] = "none"
    output_norm: Literal["affine", "plain", "group"] = "affine"
    concat: Literal["u_o_y", "u_z_y", "gate"] = "u_o_y"
    out_bias: bool = False
    residual: bool = True

    def __post_init__(self) -> None:
        if not 0 <= self.alpha <= 1e3:
            raise ConfigError("model.layer.alpha", f"{self.alpha} is outside [0, 1000]")

    @property
    def output_parts(self) -> int:
        """How many times H E values the output projection reads."""
        return 1 if self.concat == "gate" else 3


META_STU = LayerSwitches()
META_RESEARCH = LayerSwitches(
    input_norm="plain",
    uvqk_bias=False,
    silu_on="uvqk",
    alpha=1.0,
    relative_bias="position_time",
    output_norm="plain",
    concat="gate",
    out_bias=True,
)
NVIDIA = LayerSwitches(silu_on="uvqk", concat="gate")

Unknown = Literal["reject", "default", "hash", "unknown_row"]


class Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An embedding table that ids index directly.

    Attributes:
        name: of the feature or table, for errors.
        dim: width; 0 stands for the model's embedding_dim.
        rows: number of rows; valid ids are [first, rows).
        first: smallest valid id; 1 where row 0 is padding.
        unknown: what other ids get: an error, a vector of zeros, a row by hash, or one certain row.
        unknown_row: that row.
    """

    name: str
    rows: int
    dim: int = 0
    first: Literal[0, 1] = 0
    unknown: Unknown = "reject"
    unknown_row: int = 0

    def __post_init__(self) -> None:
        if not self.name:
            raise ConfigError("model.table", "a table needs a name")
        if not self.first < self.rows <= 1 << 31:
            raise ConfigError(
                f"model.table.{self.name}", f"{self.rows} rows are outside ({self.first}, 2^31]"
            )
        if not 0 <= self.dim <= 16384:
            raise ConfigError(f"model.table.{self.name}", f"dim {self.dim} is outside [0, 16384]")
        if not 0 <= self.unknown_row < self.rows:
            raise ConfigError(
                f"model.table.{self.name}", f"unknown_row {self.unknown_row} is outside [0, {self.rows})"
            )
