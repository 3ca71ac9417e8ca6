"""The floor of an attach: the same uvicorn and FastAPI, one handler that runs one Lua script. Nothing of Warmpool."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import redis.asyncio
import uvicorn
from fastapi import FastAPI, Request
from starlette.responses import Response

_SCRIPT = "redis.call('INCR', KEYS[1]); return redis.call('HGET', KEYS[2], ARGV[1])"


@asynccontextmanager
async def _life(app: FastAPI) -> AsyncIterator[None]:
    app.state.redis = redis.asyncio.Redis.from_url(os.environ["FLOOR_REDIS_URL"])
    app.state.script = app.state.redis.register_script(_SCRIPT)
    yield
    await app.state.redis.aclose()


app = FastAPI(lifespan=_life)


@app.post("/floor")
async def floor(request: Request) -> Response:
    await request.body()
    await request.app.state.script(keys=["floor:count", "floor:hash"], args=["field"])
    return Response(b'{"ok": true}', media_type="application/json")


if __name__ == "__main__":
    uvicorn.run(
        app,
        host="127.0.0.1",
        port=int(os.environ["FLOOR_PORT"]),
        log_level="warning",
        access_log=False,
        loop="uvloop",
        http="httptools",
    )
