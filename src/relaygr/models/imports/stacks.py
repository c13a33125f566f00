"""Small networks of the Meta source, as sequences of numbered modules."""

from __future__ import annotations

from relaygr.models.imports.ledger import Ledger

Sizes = tuple[int, int, int]


def move_linear(ledger: Ledger, name: str, target: str, inputs: int, outputs: int) -> None:
    ledger.move(f"{name}.weight", f"{target}.weight", (outputs, inputs))
    ledger.move(f"{name}.bias", f"{target}.bias", (outputs,))


def move_norm(ledger: Ledger, name: str, target: str, size: int) -> None:
    for kind in ("weight", "bias"):
        ledger.move(f"{name}.{kind}", f"{target}.{kind}", (size,))


def move_stack(ledger: Ledger, name: str, target: str, sizes: Sizes) -> None:
    """Linear, SwishLN, Linear: modules 0 to 2 behind `name`; sizes are input, middle and output."""
    inputs, middle, outputs = sizes
    move_linear(ledger, f"{name}0", f"{target}.first", inputs, middle)
    move_norm(ledger, f"{name}1", f"{target}.norm", middle)
    move_linear(ledger, f"{name}2", f"{target}.second", middle, outputs)


def move_normed_stack(ledger: Ledger, name: str, target: str, sizes: Sizes) -> None:
    """The same with a layer norm behind it, module 3."""
    move_stack(ledger, name, f"{target}.stack", sizes)
    move_norm(ledger, f"{name}3", f"{target}.norm", sizes[2])
