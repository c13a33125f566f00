"""Put events into the streams that a server reads. Run: python examples/stream_events.py REDIS_URL"""

from __future__ import annotations

import sys
import time

import redis

from relaygr.data.streams import shard_of

STREAMS = ["relaygr:events"]  # as in `stream.streams`


def main(url: str) -> None:
    with redis.Redis.from_url(url) as client:
        for item in (11, 7, 13):
            event = {"user": "user-42", "item": item, "timestamp": int(time.time()), "actions": 1}
            client.xadd(shard_of("user-42", STREAMS), event)


if __name__ == "__main__":
    main(sys.argv[1])
