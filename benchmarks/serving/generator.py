"""Our own source of load, for machines without `wrk`: the same rows, the same closed loop, the same report.

It parses every answer and takes some 20 microseconds of a core a request, which on a machine of two cores is
lost to whom it asks: the ratios of one run stay fair, for all contenders share it.

Run: python -m benchmarks.serving.generator URL CONNECTIONS SECONDS, with the variables that `load.load` sets.
"""

import asyncio
import itertools
import json
import os
import sys
import time
from collections.abc import Iterator
from urllib.parse import urlsplit

import httptools
import uvloop

from benchmarks.serving.load import Body, doubles, npy_header

COUNTER_BITS = 40


def constant_part(features: int) -> list[float]:
    """Return what is the same in every row: the coordinates behind the counter's bits."""
    return [float(f"{place * 0.6180339887 % 1:.4f}") for place in range(COUNTER_BITS + 1, features + 1)]


def bodies(body: Body, rows: int, features: int, first: int) -> Iterator[bytes]:
    """Yield bodies without end; a row opens with the bits of a counter, so that no two are alike before it repeats."""
    bits = min(COUNTER_BITS, features)
    counter = itertools.cycle(range(body.distinct)) if body.distinct else itertools.count(first)
    rest = constant_part(features)
    if body.npy:
        header, tail, bit = npy_header(rows, features), doubles(rest), (doubles([0.0]), doubles([1.0]))
        while True:
            numbers = itertools.islice(counter, rows)
            yield header + b"".join(
                b"".join(bit[number >> place & 1] for place in range(bits)) + tail for number in numbers
            )
    after = "".join(f",{value:.4f}" for value in rest)
    opening, closing = ("[", after + "]") if body.nested else ("", after)
    while True:
        texts = (",".join(f"{number:0{bits}b}"[-bits:]) for number in itertools.islice(counter, rows))
        yield (body.prefix + ",".join(opening + text + closing for text in texts) + body.suffix).encode()


class _Connection(asyncio.Protocol):
    def __init__(self, head: bytes, source: Iterator[bytes], until: float, latencies: list[float]) -> None:
        self._head, self._source, self._until, self._latencies = head, source, until, latencies
        self._began = 0.0
        self._parser = httptools.HttpResponseParser(self)
        self.wrong = 0
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._ask()

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_complete(self) -> None:
        now = time.perf_counter()
        if self._parser.get_status_code() // 100 == 2:
            self._latencies.append(now - self._began)
        else:
            self.wrong += 1
        if now < self._until:
            self._ask()
        else:
            self._end()

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        if not self.over.done():
            self.wrong += 1
            self.over.set_result(None)

    def _ask(self) -> None:
        content = next(self._source)
        self._began = time.perf_counter()
        self._transport.write(self._head + b"%d\r\n\r\n" % len(content) + content)  # type: ignore[attr-defined]

    def _end(self) -> None:
        self.over.set_result(None)
        self._transport.close()


async def _run(url: str, connections: int, seconds: float) -> dict[str, float]:
    asked = os.environ
    body = Body(
        asked["BENCH_PREFIX"],
        asked["BENCH_SUFFIX"],
        asked["BENCH_NESTED"] == "1",
        asked.get("BENCH_NPY") == "1",
        int(asked["BENCH_DISTINCT"]),
    )
    source = bodies(body, int(asked["BENCH_ROWS"]), int(asked["BENCH_FEATURES"]), int(asked["BENCH_FIRST_ROW"]))
    where = urlsplit(url)
    head = f"POST {where.path} HTTP/1.1\r\nHost: {where.netloc}\r\n"
    head += f"Content-Type: {body.media_type}\r\nAccept: {body.media_type}\r\n"
    if "BENCH_KEY" in asked:
        head += f"Authorization: Bearer {asked['BENCH_KEY']}\r\n"
    head += "Content-Length: "
    latencies: list[float] = []
    began = time.perf_counter()
    loop = asyncio.get_running_loop()
    opened = [
        (
            await loop.create_connection(
                lambda: _Connection(head.encode(), source, began + seconds, latencies), where.hostname, where.port
            )
        )[1]
        for _ in range(connections)
    ]
    await asyncio.wait([connection.over for connection in opened], timeout=seconds + 20)
    taken = time.perf_counter() - began
    wrong = sum(connection.wrong + (not connection.over.done()) for connection in opened)
    latencies.sort()
    return {"requests": len(latencies) + wrong, "seconds": taken, "wrong": wrong} | {
        name: _percentile(latencies, share) * 1e6 for name, share in (("p50", 0.5), ("p99", 0.99), ("p999", 0.999))
    }


def _percentile(ordered: list[float], share: float) -> float:
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)] if ordered else 0.0


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        print(json.dumps(runner.run(_run(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])))))
