"""The gateway's OpenAPI document, from the models by which requests are read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic.json_schema import models_json_schema

from engines.agents.wire.wire_format import WireFormat

_SCHEMAS = "#/components/schemas/{model}"
_ERRORS = {
    "400": "the request cannot be answered, or the session is over",
    "401": "the key names no open session",
    "413": "the request is too large",
    "429": "too many requests of the session at the same time",
    "503": "the engine does not answer",
}


def openapi(formats: Sequence[WireFormat], count_path: str) -> dict[str, Any]:
    """OpenAPI 3.1. `count_path` takes the body of the last format."""
    bodies = [(wire.body, "validation") for wire in formats]
    _, found = models_json_schema(bodies, ref_template=_SCHEMAS)  # pyright: ignore[reportArgumentType]
    said = {wire.path: _post(wire, _answer()) for wire in formats}
    counted = {"type": "object", "properties": {"input_tokens": {"type": "integer"}}}
    said[count_path] = _post(formats[-1], {"application/json": {"schema": counted}})
    return {
        "openapi": "3.1.0",
        "info": {"title": "Tributary's gateway for agents", "version": "1"},
        "paths": said,
        "components": {
            "schemas": found["$defs"],
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"key": []}],
    }


def _answer() -> dict[str, Any]:
    return {
        "application/json": {"schema": {"type": "object"}},
        "text/event-stream": {"schema": {"type": "string"}},
    }


def _post(wire: WireFormat, content: dict[str, Any]) -> dict[str, Any]:
    body = {"schema": {"$ref": _SCHEMAS.format(model=wire.body.__name__)}}
    errors = {status: {"description": text} for status, text in _ERRORS.items()}
    answers = {"200": {"description": "the policy's turn", "content": content}, **errors}
    asked = {"required": True, "content": {"application/json": body}}
    return {"post": {"requestBody": asked, "responses": answers}}
