"""An instance that answers at once whatever it is asked; run as a process by `bench gateway`."""

from __future__ import annotations

import asyncio
import sys

from aiohttp import web


async def main(port: int, body: bytes) -> None:
    """Listen on `port` for ever."""

    async def answer(request: web.Request) -> web.Response:
        await request.read()
        if request.path == "/v1/relay/feedback":
            return web.Response(body=b'{"ready": true}', content_type="application/json")
        return web.Response(body=body, content_type="application/json")

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), sys.argv[2].encode()))
