"""Figures of the length study as text, for tables on a page and on a terminal."""

from __future__ import annotations

from relaygr.training.cap_estimates import NE, CapEstimate


def cell(one: CapEstimate, few: bool = False, spread: bool = True) -> str:
    """Mean, interval unless there are too `few` users for one, and the range of the models."""
    text = number(one.mean)
    if not few:
        text += f" [{number(one.low)}, {number(one.high)}]"
    if spread and len(one.per_model) > 1:
        text += f" ({number(min(one.per_model))} to {number(max(one.per_model))})"
    return text


def gap_cell(one: CapEstimate, few: bool = False) -> str:
    """A difference as `cell`, with signs; bold when its interval leaves zero out."""
    text = f"{signed(one.mean)}"
    if not few:
        text += f" [{signed(one.low)}, {signed(one.high)}]"
        text = f"**{text}**" if outside_zero(one) else text
    if len(one.per_model) > 1:
        text += f" ({signed(min(one.per_model))} to {signed(max(one.per_model))})"
    return text


def direction(one: CapEstimate) -> str:
    """What a difference says: better, worse, within noise, or nothing read differently."""
    if one.low == one.high == 0:
        return "reads the same"
    if not outside_zero(one):
        return "within noise"
    return "better" if (one.mean < 0) == (one.metric == NE) else "worse"


def outside_zero(one: CapEstimate) -> bool:
    return one.low > 0 or one.high < 0


def number(value: float) -> str:
    """Three decimals without the zero in front, which leaves room for intervals."""
    return f"{value:.3f}".replace("0.", ".", 1) if abs(value) < 1 else f"{value:.3f}"


def signed(value: float) -> str:
    text = number(abs(value))
    if text == ".000":
        return "0"
    return ("+" if value > 0 else "−") + text
