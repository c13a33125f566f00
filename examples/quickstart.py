"""Store a user's events, encode them ahead of time, rank candidates. Run: python examples/quickstart.py"""

from __future__ import annotations

from server import running_server

from relaygr.client import Client


def main(url: str) -> None:
    with Client(url) as client:
        now = 1_700_000_000
        stored = client.append(
            "user-42", items=[11, 7, 11, 5], timestamps=[now, now + 60, now + 120, now + 180]
        )
        print(f"stored {stored.accepted} events")

        signal = client.prefix("user-42")  # answers at once; the history is encoded meanwhile
        print(f"prefix: {signal.admission}, {signal.tokens} tokens")

        ranking = client.rank("user-42", candidates=[7, 11, 13, 5], deadline_ms=10_000, top_k=2)
        print(f"served from {ranking.served_tokens} tokens, path {ranking.path}")
        for place in ranking.order or []:
            print(f"  item {[7, 11, 13, 5][place]}: {ranking.scores[place][0]:+.4f}")

        client.append("user-42", items=[13], timestamps=[now + 240])  # the next ranking computes one token
        print(f"after one more event: {client.state('user-42').events} events")
        client.delete("user-42")


if __name__ == "__main__":
    # So short a history needs no help: by default its signals are refused.
    with running_server("--set", "trigger.admit_all=true") as url:
        main(url)
