"""The same decoder in `transformers`, where that is installed: its prompt pass and its beam search."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch

from relaygr.models.decoder.decoder import Decoder
from relaygr.models.decoder.huggingface import save_decoder


def open_peer(decoder: Decoder) -> Any | None:
    """The model with the decoder's weights; None without the package."""
    try:
        from transformers import AutoModelForCausalLM
    except ImportError:
        return None
    with tempfile.TemporaryDirectory() as folder:
        save_decoder(decoder, Path(folder))
        model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=decoder.dtype)
    return model.eval().requires_grad_(False)


@torch.inference_mode()
def peer_prefill(model: Any, tokens: list[int]) -> torch.Tensor:
    """Logits of the last token of a prompt, keys and values kept as its generation keeps them."""
    found: torch.Tensor = model(torch.tensor([tokens]), use_cache=True, logits_to_keep=1).logits
    return found


@torch.inference_mode()
def peer_beams(model: Any, tokens: list[int], width: int, rounds: int) -> torch.Tensor:
    """Its beam search over the whole vocabulary: it knows no catalogue."""
    found: torch.Tensor = model.generate(
        torch.tensor([tokens]),
        attention_mask=torch.ones(1, len(tokens), dtype=torch.int64),
        num_beams=width,
        num_return_sequences=width,
        max_new_tokens=rounds,
        min_new_tokens=rounds,
        do_sample=False,
        pad_token_id=0,
        eos_token_id=None,
    )
    return found
