"""Messages between a sandbox's agent and its owner: a JSON header and a body of bytes.

On the wire: two big-endian 32-bit lengths, the header, the body. A request has `do`; an answer has
what was asked for, or `error`, a sentence.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable
from typing import Any

LENGTHS = struct.Struct(">II")
MOST_HEADER = 1 << 20
MOST_BODY = (1 << 32) - 1

Header = dict[str, Any]


def encode(header: Header, body: bytes = b"") -> bytes:
    return beginning(header, len(body)) + body


def beginning(header: Header, size: int) -> bytes:
    """Return what comes before a body of this size."""
    text = json.dumps(header).encode()
    return LENGTHS.pack(len(text), size) + text


def receive(read: Callable[[int], bytes], most: int = MOST_BODY) -> tuple[Header, bytes]:
    """The next message; `read(n)` gives exactly n bytes. Raises EOFError from it, and ValueError
    for what is no message or longer than `most` bytes."""
    header_size, body_size = LENGTHS.unpack(read(LENGTHS.size))
    if header_size > MOST_HEADER or body_size > most:
        raise ValueError(f"a message of {header_size} and {body_size} bytes")
    header = json.loads(read(header_size))
    if not isinstance(header, dict):
        raise ValueError("a message's header is no JSON object")
    return header, read(body_size)


def read_exactly(descriptor: int, size: int) -> bytes:
    """Blocks for `size` bytes; raises EOFError."""
    parts = bytearray()
    while len(parts) < size:
        part = os.read(descriptor, min(size - len(parts), 1 << 20))
        if not part:
            raise EOFError("the other side has closed")
        parts += part
    return bytes(parts)


def write_all(descriptor: int, data: bytes | memoryview) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
