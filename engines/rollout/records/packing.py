"""Problems, turns, samples and groups as bytes and text.

Samples are packed for the journal, and groups for what waits at a checkpoint:

    checksum ─ length ─ JSON of everything but arrays ─ tokens ─ logprobs ─ loss masks ─ the rest

The arrays of all samples stand end to end as they are in memory, so writing costs a copy and
reading back nothing: what is read back are views. Problems and turns are JSON text, for columns
that a person can read. An artifact has judged groups, to be trained on later, in files of some
groups each, in order.
"""

from __future__ import annotations

import json
import math
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from engines.types import Group, Message, Problem, Sample, Status, Tool, ToolCall
from engines.weight_versions import WeightVersions
from infra.errors import InputError

_HEAD = struct.Struct("<II")

_ARRAYS = {"tokens": np.int32, "logprobs": np.float32, "loss_mask": np.bool_}
"""in the order of the file, the widest first: then each is aligned"""

_RARE = ("experts", "kept")
"""arrays of other sizes, which not every sample has; they come after all others"""

_APART = (*_ARRAYS, "weight_versions", *_RARE)
_PLAIN = [f.name for f in fields(Sample) if f.name not in _APART]


def pack_samples(samples: Sequence[Sample], beside: Any = None) -> bytes:
    """The samples, and anything that JSON can hold."""
    head = {"samples": [_plain(sample) for sample in samples], "beside": beside}
    text = orjson.dumps(head)
    text += b" " * (-len(text) % 8)
    arrays = [np.ascontiguousarray(getattr(s, name)) for name in _ARRAYS for s in samples]
    rare = (getattr(s, name) for s in samples for name in _RARE)
    arrays += [np.ascontiguousarray(array) for array in rare if array is not None]
    body = b"".join([text, *(array.data for array in arrays)])
    return _HEAD.pack(zlib.crc32(body), len(text)) + body


def unpack_samples(data: bytes) -> tuple[list[Sample], Any]:
    """The counterpart. Raises ValueError for data that are incomplete or damaged."""
    if len(data) < _HEAD.size:
        raise ValueError("packed samples end in their head")
    checksum, length = _HEAD.unpack_from(data)
    if zlib.crc32(memoryview(data)[_HEAD.size :]) != checksum:
        raise ValueError("packed samples are incomplete or damaged: the checksum differs")
    raw = orjson.loads(data[_HEAD.size : _HEAD.size + length])
    ends = np.cumsum([sample["length"] for sample in raw["samples"]], dtype=np.int64)
    columns: list[list[Any]] = []
    at, total = _HEAD.size + length, int(ends[-1]) if len(ends) else 0
    for dtype in _ARRAYS.values():
        columns.append(np.split(np.frombuffer(data, dtype, total, at), ends[:-1]))
        at += total * np.dtype(dtype).itemsize
    for plain in raw["samples"]:
        for name in filter(plain.__contains__, _RARE):
            kind, *shape = plain[name]
            plain[name] = np.frombuffer(data, kind, math.prod(shape), at).reshape(shape)
            at += plain[name].nbytes
    # `split` gives one empty piece where there is no sample at all
    found = zip(raw["samples"], *columns, strict=bool(len(ends)))
    return [_sample(plain, arrays) for plain, *arrays in found], raw["beside"]


def _plain(sample: Sample) -> dict[str, Any]:
    made: dict[str, Any] = {name: getattr(sample, name) for name in _PLAIN}
    for name in _RARE:
        if (array := getattr(sample, name)) is not None:
            made[name] = [array.dtype.name, *array.shape]
    return made | {"weight_versions": sample.weight_versions.runs, "length": len(sample.tokens)}


def _sample(plain: dict[str, Any], arrays: list[Any]) -> Sample:
    """Return what was written before a field was there has its default."""
    names = [name for name in (*_PLAIN, *_RARE) if name in plain and name != "status"]
    made: dict[str, Any] = {name: plain[name] for name in names}
    made |= dict(zip(_ARRAYS, arrays, strict=True))
    runs = WeightVersions.of_runs((version, count) for version, count in plain["weight_versions"])
    return Sample(**made, weight_versions=runs, status=Status(plain["status"]))


def dump_turns(turns: Sequence[Message]) -> str:
    return _dumps([_message(m) for m in turns])


def load_turns(text: str) -> tuple[Message, ...]:
    return tuple(_to_message(m) for m in json.loads(text))


def dump_problem(problem: Problem) -> str:
    return _dumps(
        {
            "id": problem.id,
            "domain": problem.domain,
            "messages": [_message(m) for m in problem.messages],
            "reference": problem.reference,
            "tools": [_tool(t) for t in problem.tools],
            "thinking": problem.thinking,
            "metadata": dict(problem.metadata),
        }
    )


def load_problem(text: str) -> Problem:
    raw = json.loads(text)
    return Problem(
        id=raw["id"],
        domain=raw["domain"],
        messages=tuple(_to_message(m) for m in raw["messages"]),
        reference=raw["reference"],
        tools=tuple(
            Tool(
                t["name"], t["description"], t["parameters"], tuple(t["required"]), t.get("schema")
            )
            for t in raw["tools"]
        ),
        thinking=raw["thinking"],
        metadata=raw["metadata"],
    )


def _dumps(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    try:
        text.encode()
    except UnicodeEncodeError:  # a user's text holds half of a surrogate pair
        return json.dumps(value, sort_keys=True, separators=(",", ":"))
    return text


def _message(message: Message) -> dict[str, Any]:
    return {
        "role": message.role,
        "content": message.content,
        "reasoning": message.reasoning,
        "tool_calls": [
            {"name": c.name, "arguments": c.arguments} | ({"id": c.id} if c.id else {})
            for c in message.tool_calls
        ],
    }


def _to_message(raw: Mapping[str, Any]) -> Message:
    calls = tuple(ToolCall(**call) for call in raw["tool_calls"])
    return Message(raw["role"], raw["content"], raw["reasoning"], calls)


def _tool(tool: Tool) -> dict[str, Any]:
    said = {
        "name": tool.name,
        "description": tool.description,
        "parameters": dict(tool.parameters),
        "required": list(tool.required),
    }
    return said if tool.schema is None else said | {"schema": tool.schema}


def pack_groups(groups: Sequence[Group]) -> bytes:
    heads = [[dump_problem(g.problem), g.ticket, len(g.samples)] for g in groups]
    return pack_samples([s for g in groups for s in g.samples], heads)


def unpack_groups(data: bytes) -> list[Group]:
    """The counterpart. Raises ValueError for data that are incomplete or damaged."""
    samples, heads = unpack_samples(data)
    rest = iter(samples)
    return [
        Group(load_problem(problem), list(islice(rest, count)), ticket)
        for problem, ticket, count in heads
    ]


_FOLDER = "groups"

_IN_A_FILE = 64


def save_groups(artifact: Path, groups: Sequence[Group]) -> None:
    """Write them into an artifact's folder."""
    folder = artifact / _FOLDER
    folder.mkdir()
    for number, first in enumerate(range(0, len(groups), _IN_A_FILE)):
        (folder / f"{number:06d}.bin").write_bytes(pack_groups(groups[first : first + _IN_A_FILE]))


def has_groups(artifact: Path) -> bool:
    """Return whether `save_groups` wrote into the artifact."""
    return (artifact / _FOLDER).is_dir()


def saved_groups(artifact: Path) -> Iterator[Group]:
    """Yield what `save_groups` wrote, in its order. Raises InputError for a file that is
    damaged."""
    for file in sorted((artifact / _FOLDER).iterdir()):
        try:
            yield from unpack_groups(file.read_bytes())
        except ValueError as error:
            raise InputError(f"{file}: {error}") from None
