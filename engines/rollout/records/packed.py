"""Samples as bytes, for the journal and for what waits at a checkpoint.

    checksum ─ length ─ JSON of everything but arrays ─ tokens ─ logprobs ─ loss masks

The arrays of all samples stand end to end as they are in memory, so writing costs a copy and
reading back nothing: what is read back are views.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import orjson

from engines.types import Sample, Status
from engines.weight_versions import WeightVersions

_HEAD = struct.Struct("<II")
_ARRAYS = {"tokens": np.int32, "logprobs": np.float32, "loss_mask": np.bool_}
"""in the order of the file, the widest first: then each is aligned"""
_PLAIN = [f.name for f in fields(Sample) if f.name not in (*_ARRAYS, "weight_versions")]


def pack_samples(samples: Sequence[Sample], beside: Any = None) -> bytes:
    """The samples, and anything that JSON can hold."""
    head = {"samples": [_plain(sample) for sample in samples], "beside": beside}
    text = orjson.dumps(head)
    text += b" " * (-len(text) % 8)
    arrays = [np.ascontiguousarray(getattr(s, name)) for name in _ARRAYS for s in samples]
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
    # `split` gives one empty piece where there is no sample at all
    found = zip(raw["samples"], *columns, strict=bool(len(ends)))
    return [_sample(plain, arrays) for plain, *arrays in found], raw["beside"]


def _plain(sample: Sample) -> dict[str, Any]:
    made: dict[str, Any] = {name: getattr(sample, name) for name in _PLAIN}
    return made | {"weight_versions": sample.weight_versions.runs, "length": len(sample.tokens)}


def _sample(plain: dict[str, Any], arrays: list[Any]) -> Sample:
    made: dict[str, Any] = {name: plain[name] for name in _PLAIN if name != "status"}
    made |= dict(zip(_ARRAYS, arrays, strict=True))
    runs = WeightVersions.of_runs((version, count) for version, count in plain["weight_versions"])
    return Sample(**made, weight_versions=runs, status=Status(plain["status"]))
