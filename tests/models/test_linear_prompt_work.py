"""What a prompt's tokens cost, counted in work and not in time: with linear layers only, all the same."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec
import torch
from decoder_cases import ours, prompt
from hybrid_cases import empty
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from relaygr.models.decoder.decoder import Decoder

PASS = 1024


def attention_flops(
    q: tuple[int, ...], k: tuple[int, ...], *rest: object, out_shape: object = None, **options: object
) -> int:
    """Of q [B, H, n, d] on k [B, H, P, d], and of as many values."""
    return 4 * math.prod(q) * k[2]


# The counter knows other devices' only.
ATTENTION = {torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: attention_flops}


class Touched(TorchDispatchMode):
    """Counts the elements of all tensors that operators read and write; views move nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        if not func.is_view:
            flat, _ = torch.utils._pytree.tree_flatten((args, kwargs, out))
            self.elements += sum(math.prod(x.shape) for x in flat if isinstance(x, Tensor))
        return out


def _work(model: Decoder, tokens: int) -> tuple[int, int]:
    """Floating-point operations of products, and elements touched, of a prompt in passes of equal size."""
    drawn, held = prompt(tokens), empty(model, tokens)
    with FlopCounterMode(display=False, custom_mapping=ATTENTION) as flops, Touched() as touched:
        for start in range(0, tokens, PASS):
            model.prefill([held.row(drawn[start : start + PASS])])
    return flops.get_total_flops(), touched.elements


def _long(name: str, tokens: int) -> Decoder:
    """With room for so many positions; what a process or a model does once is done."""
    model = Decoder(msgspec.structs.replace(ours(name).config, max_positions=tokens))
    model.init_weights(0).requires_grad_(False)
    model.prefill([empty(model, 3).row(prompt(3))])
    model.rope.run(0, tokens, model.device)
    return model


def test_a_token_of_a_long_prompt_costs_what_one_of_a_short_prompt_costs() -> None:
    """16,384 tokens against 1,024, linear layers only: exactly 16 times the work."""
    model = _long("next-linear", 16_384)
    short, long = _work(model, 1024), _work(model, 16_384)
    assert min(short) > 0
    assert long == tuple(16 * one for one in short)


def test_with_full_attention_it_does_not() -> None:
    model = _long("next-ends-linear", 4096)
    short, long = _work(model, 1024), _work(model, 4096)
    assert long[0] > 6 * short[0]
    assert long[1] > 4 * short[1]


def test_what_a_prompt_leaves_behind_does_not_grow() -> None:
    model, left = _long("next-linear", 4096), []
    for tokens in (1, 1000, 4000):
        held = empty(model, tokens)
        model.remember([held.row(prompt(tokens))])
        left.append(held.state.nbytes)
    assert left[0] == left[1] == left[2] == model.config.recurrent_layout(torch.float32).prompt_bytes
