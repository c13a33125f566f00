"""The examples run as a reader would run them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
NEEDS = {"ann_cascade": "faiss", "triton_client": "tritonclient.http"}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("quickstart", ["stored 4 events", "prefix: admitted, 4 tokens", "served from 4 tokens", "5 events"]),
        ("cascade", ["user-0: prefix admitted", "user-0: prefix hit, path hit", "best: [", "lead "]),
        ("ann_cascade", ["trained", "lists of the index", "path hit, lead", "prefix not_sent, path full"]),
        ("generate_rank", ["2,000 items under", "301 of 310 prompt tokens were there", "ranked"]),
        ("triton_client", ["ready: True", "largest difference to /v1/rank: 0.0e+00"]),
    ],
)
def test_an_example(name: str, words: list[str], tmp_path: Path) -> None:
    if name in NEEDS:
        pytest.importorskip(NEEDS[name], reason=f"{NEEDS[name]} is not installed")
    done = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / f"{name}.py")],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=240,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    for word in words:
        assert word in done.stdout
    assert list(tmp_path.iterdir()) == []
