"""Generate items for a user, then rank them, in one service. Run: python examples/generate_rank.py

Semantic ids are built from made-up embeddings, and both models have random weights: what comes out means
nothing, how it comes does. Train them with `relaygr train ranker`, `relaygr sids build` and `relaygr train
generator`.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from server import running_server

from relaygr.client import Client
from relaygr.generation.catalogue.artefact import make_catalogue, write_catalogue
from relaygr.generation.catalogue.build import build_index
from relaygr.generation.catalogue.rows import Rows
from relaygr.generation.catalogue.tokens import PromptTemplate, stacked
from relaygr.generation.sids.build import build_sids
from relaygr.generation.sids.quantise import SidConfig
from relaygr.models.decoder.config import DecoderConfig
from relaygr.models.decoder.decoder import Decoder
from relaygr.models.decoder.huggingface import save_decoder

ITEMS = 2_000
SIZES = (16, 16, 16)


def make_models(folder: Path) -> None:
    """A catalogue of items under semantic ids, and a decoder over their codes."""
    item_ids = np.arange(ITEMS)
    embeddings = np.random.default_rng(0).standard_normal((ITEMS, 16), np.float32)
    ids = build_sids(item_ids, embeddings, SidConfig(sizes=SIZES))
    index = build_index(Rows(item_ids=ids.item_ids, codes=ids.codes), ids.sizes).index
    template = PromptTemplate(before=(0,))  # token 0 begins every prompt, codes follow from 1 on
    catalogue = make_catalogue(index, tokens=stacked(ids.sizes, 1), template=template)
    write_catalogue(folder / "catalogue", catalogue)
    print(f"{index.n_items:,} items under {index.n_sids:,} semantic ids")
    shape = DecoderConfig(
        family="qwen3",
        vocab_size=1 + sum(ids.sizes),
        hidden_size=64,
        mlp_size=128,
        num_layers=2,
        num_heads=2,
        num_kv_heads=1,
        head_dim=32,
    )
    save_decoder(Decoder(shape).init_weights(0, 0.1), folder / "decoder")


def main(url: str) -> None:
    now = 1_700_000_000
    with Client(url) as client:
        client.append("user-7", items=range(100), timestamps=range(now, now + 100))
        # Both prompts are encoded ahead: the ranker's events and the generator's codes of the same history.
        client.prefix("user-7", generate=True)
        for lap in range(2):
            found = client.generate("user-7", beam_width=64, num_results=50, exclude_seen=True)
            print(
                f"generated {found.returned} ids, {len(found.items)} items, "
                f"{found.cached_tokens} of {found.prompt_tokens} prompt tokens were there"
            )
            items = [int(item) for item in found.items]
            ranking = client.rank("user-7", candidates=items, top_k=3)
            best = [items[place] for place in ranking.order or []]
            print(f"ranked {len(items)} of them by path {ranking.path}: best {best}")
            client.append("user-7", items=best, timestamps=[now + 200 + lap] * len(best))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_models(folder)
        generator = ["--set", f"generator.model={folder}/decoder"]
        catalogue = ["--set", f"generator.catalogue={folder}/catalogue"]
        small = ["--set", "generator.device_bytes=64MiB", "--set", "trigger.admit_all=true"]
        with running_server(*generator, *catalogue, *small) as url:
            main(url)
