"""A server that answers `/generate` as SGLang does, at once and with prepared tokens.

Usage: python -m tests.programs.bench.simulated_server TOKENS. It prints its port, and ends with
its input.
"""

from __future__ import annotations

import random
import struct
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import orjson

from tests.parts.engine_replies import LAST

ANSWERS = 64
"""different answers, dealt out in turn"""


def answer(tokens: int, draw: random.Random) -> bytes:
    """One sequence of a reply: printable bytes of the tiny tokenizer, log-probabilities in fp32."""
    ids = [draw.randrange(33, 90) for _ in range(tokens)]
    logprobs = [struct.unpack("f", struct.pack("f", -draw.expovariate(1.0)))[0] for _ in ids]
    return orjson.dumps(
        {
            "text": "",
            "output_ids": ids,
            "meta_info": {
                "id": f"{draw.getrandbits(128):032x}",
                "finish_reason": {"type": "length", "length": tokens},
                "prompt_tokens": 64,
                "weight_version": "0",
                "total_retractions": 0,
                "input_token_logprobs": [],
                "output_token_logprobs": [[p, i, None] for p, i in zip(logprobs, ids, strict=True)],
                "completion_tokens": tokens,
                "cached_tokens": 0,
                "e2e_latency": 0.0,
            },
        }
    )


def event_of(index: int, prepared: bytes) -> bytes:
    """In which a sequence of a batch is answered."""
    return b'data: [{"index":%d,' % index + prepared[1:] + b"]\n\n"


def serve(tokens: int) -> None:
    draw = random.Random(0)
    prepared = [answer(tokens, draw) for _ in range(ANSWERS)]

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            asked = orjson.loads(self.rfile.read(int(self.headers["Content-Length"])))
            count = len(asked["input_ids"])
            first = draw.randrange(ANSWERS)
            chosen = [prepared[(first + i) % ANSWERS] for i in range(count)]
            body = b"[" + b",".join(chosen) + b"]"
            if asked["stream"]:
                body = b"".join(event_of(i, answer) for i, answer in enumerate(chosen)) + LAST
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Nothing: thousands of requests are expected."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 2048
        """as uvicorn's: with the default of 5, refused connections come again after a second"""

    server = Server(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_port, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    serve(int(sys.argv[1]))
