"""Rank through the Open Inference Protocol, with the client that Triton users have.

Needs `pip install tritonclient[http]`. Run: python examples/triton_client.py
"""

from __future__ import annotations

import numpy as np
import tritonclient.http as triton
from server import running_server

from relaygr.client import Client

USER = "user-42"
CANDIDATES = np.array([7, 11, 13], np.int64)


def main(url: str) -> None:
    with Client(url) as client:
        client.append(USER, items=[11, 7, 11], timestamps=[1_700_000_000, 1_700_000_060, 1_700_000_120])
        direct = client.rank(USER, CANDIDATES)
    server = triton.InferenceServerClient(url.removeprefix("http://"))
    try:
        print(f"ready: {server.is_model_ready('ranker')}")
        inputs = [
            triton.InferInput("user", [1], "BYTES"),
            triton.InferInput("candidates", [len(CANDIDATES)], "INT64"),
        ]
        inputs[0].set_data_from_numpy(np.array([USER.encode()], np.object_))
        inputs[1].set_data_from_numpy(CANDIDATES)
        result = server.infer("ranker", inputs)
        scores = result.as_numpy("scores")
    finally:
        server.close()
    print(f"scores {scores.ravel().tolist()}, path {result.as_numpy('path').ravel()[0].decode()}")
    print(f"largest difference to /v1/rank: {np.abs(scores - np.array(direct.scores)).max():.1e}")


if __name__ == "__main__":
    with running_server() as url:
        main(url)
