"""A dashboard that only pretends: takes Serve's configuration, and tells what it was given."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit


class Dashboard:
    """Serve's API, and the proxy's status page of each ranker, at one address.

    Attributes:
        told: what GET answers; sent: what PUT was given.
        folders: what a ranker, by its id, says that it was loaded from; who is not in it does not answer.
    """

    def __init__(self) -> None:
        self.told: dict[str, Any] = {"applications": {}, "proxies": {}}
        self.sent: list[dict[str, Any]] = []
        self.folders: dict[str, str] = {}
        self.url = ""

    def run(self, name: str, **more: Any) -> None:
        self.told["applications"][name] = {"name": name, "status": "RUNNING", "deployments": {}, **more}

    def answer(self, method: str, target: str, body: bytes) -> tuple[int, Any]:
        place = urlsplit(target)
        if place.path == "/v1/status":
            [name] = parse_qs(place.query)["replica"]
            found = self.folders.get(name)
            return (404, {}) if found is None else (200, {"model": {"name": "ranker", "folder": found}})
        assert place.path == "/api/serve/applications/"
        if method == "PUT":
            self.sent.append(json.loads(body))
            names = {one["name"] for one in self.sent[-1]["applications"]}
            apps = self.told["applications"]
            for name in list(apps):
                if name not in names and apps[name].get("source") == "declarative":
                    del apps[name]
            for one in self.sent[-1]["applications"]:
                rankers = {"status": "HEALTHY", "replicas": self.replicas()}
                self.run(
                    one["name"],
                    source="declarative",
                    deployed_app_config=one,
                    deployments={"Ranker": rankers},
                    route_prefix=one["route_prefix"],
                )
        return 200, self.told

    def replicas(self) -> list[dict[str, Any]]:
        gone = {"replica_id": "gone", "state": "STOPPING"}
        return [gone, *({"replica_id": name, "state": "RUNNING", "pid": 1} for name in ("a1", "b2"))]


@contextmanager
def dashboard() -> Iterator[Dashboard]:
    pretended = Dashboard()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            status, found = pretended.answer(self.command, self.path, body)
            data = json.dumps(found).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_PUT = do_GET  # noqa: N815

        def log_message(self, *_: Any) -> None:
            """Nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        pretended.url = f"http://127.0.0.1:{server.server_port}"
        try:
            yield pretended
        finally:
            server.shutdown()
            thread.join()
