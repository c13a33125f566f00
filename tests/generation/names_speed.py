"""Finding string ids in a catalogue, timed: `PYTHONPATH=src python tests/generation/names_speed.py`.

By bisection and by hashes, in CPU times of the one thread, so that whatever else runs counts little.
"""

from __future__ import annotations

import random
import time

from select_speed import median_ms

from relaygr.generation.catalogue.names import make_names

NAMES = 1_000_000


def main() -> None:
    rng = random.Random(0)
    print("ids, catalogue, asked | bisected, hashed median ms | ratio")
    for kind in ("numbered", "random"):
        texts = [f"item-{number:09d}" for number in range(NAMES)]
        if kind == "random":
            texts = [f"{rng.getrandbits(128):032x}" for _ in texts]
        names, _ = make_names(texts)
        hashed, _ = make_names(texts)
        plain = hashed.nbytes
        began = time.thread_time()
        hashed.prepare()
        took_ms, more = (time.thread_time() - began) * 1e3, (hashed.nbytes - plain) / NAMES
        print(f"{kind}: prepared in {took_ms:.0f} ms, {more:.0f} bytes an id")
        for count in (128, 10_000, 100_000):
            # A tenth of them is unknown.
            asked = [*rng.sample(texts, count - count // 10), *(f"unknown-{n}" for n in range(count // 10))]
            rng.shuffle(asked)
            before, after = (median_ms(lambda: table.find(asked), 5)[1] for table in (names, hashed))  # noqa: B023
            print(f"{kind:9} {NAMES} {count:7} | {before:8.2f} {after:8.2f} | {before / after:5.1f}")


if __name__ == "__main__":
    main()
