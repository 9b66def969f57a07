"""What a running server says of itself: how it is found, and how it has to be left."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from engines.sglang.http import NoConnection, Refused, call, read_text
from engines.weights.transport import CHECK_S, CONTROL_S
from infra.errors import EngineError, InputError

_LAYER = re.compile(r"\blayers\.(\d+)\.")
_VOCABULARY = re.compile(r"valid range is \[0, (\d+)\)")
_NO_TOKEN = 10**9
_SECRETS = ("api_key", "admin_api_key")


@dataclass(frozen=True, slots=True)
class FoundServer:
    """One server, without a restart or a push since. Where it does not say a number, it is None."""

    url: str
    num_ranks: int
    model_path: str
    """where it read its weights"""
    started_path: str
    version: str
    """of its weights, as it calls them. Example: "default" """
    started_version: str
    checksum: str
    """of the weights in its memory; empty where it offers none"""
    architectures: tuple[str, ...]
    num_layers: int | None
    vocab: int | None
    context_length: int | None
    release: str
    """of SGLang. Example: "0.5.23" """
    options: Mapping[str, Any] = field(repr=False)
    """SGLang's server arguments that are no secret"""

    @property
    def can_be_restored(self) -> bool:
        """Whether its weights are those of its model path, as far as one can see: others that were
        pushed to it have a version of their own and no path."""
        return self.version == self.started_version or self.model_path != self.started_path


def find_servers(addresses: Iterable[str]) -> tuple[str, ...]:
    """The addresses of servers, with those that a router knows in place of the router's own.

    Raises InputError where neither answers, EngineError for a router without servers.
    """
    found = [url for address in addresses for url in _servers_at(address)]
    return tuple(dict.fromkeys(found))


def look_at(url: str) -> FoundServer:
    """Ask a server all that there is to know. Raises EngineError if it does not answer."""
    model = call(url, "/model_info", timeout=CONTROL_S)
    info = call(url, "/server_info", timeout=CONTROL_S)
    checksum, names = _weights(url)
    layers = [int(found[1]) for name in names if (found := _LAYER.search(name))]
    return FoundServer(
        url=url,
        num_ranks=int(info["tp_size"]),
        model_path=str(model["model_path"]),
        started_path=str(info["model_path"]),
        version=str(model["weight_version"]),
        started_version=str(info["weight_version"]),
        checksum=checksum,
        architectures=tuple(model.get("architectures") or ()),
        num_layers=max(layers) + 1 if layers else None,
        vocab=_vocabulary(url),
        context_length=_context_length(url),
        release=str(info.get("version", "")),
        options={name: value for name, value in info.items() if name not in _SECRETS},
    )


def _servers_at(address: str) -> list[str]:
    try:
        call(address, "/model_info", timeout=CONTROL_S)
        return [address]
    except NoConnection as error:
        raise InputError(
            f"nobody answers at {address}: start the server, or correct the address ({error})"
        ) from error
    except Refused as error:
        if "(401)" in str(error) or "(403)" in str(error):
            raise InputError(
                f"{address} asks for another key: export it as EXTERNAL_FLEET_KEY, or put it in the"
                " block that `storage.credentials` names"
            ) from error
    try:
        workers: list[dict[str, Any]] = call(address, "/workers", timeout=CONTROL_S)["workers"]
    except EngineError as error:
        raise InputError(
            f"{address} is neither an SGLang server nor an sglang-router ({error}); give the"
            " address of one"
        ) from error
    if not workers:
        raise EngineError(f"the router at {address} knows no server; register servers with it")
    return [str(worker["url"]).rstrip("/") for worker in workers]


def _weights(url: str) -> tuple[str, set[str]]:
    """Checksum and names of the tensors in its memory; empty where it does not tell."""
    try:
        checked = call(url, "/weights_checker", {"action": "checksum"}, timeout=CHECK_S)
    except Refused:  # an older SGLang
        return "", set()
    names = {name for rank in checked.get("ranks") or () for name in rank.get("checksums") or ()}
    return str(checked.get("per_engine_checksum") or ""), names


def _vocabulary(url: str) -> int | None:
    """From how it refuses to score a token that no vocabulary has."""
    body = {
        "input_ids": [1],
        "sampling_params": {"max_new_tokens": 1},
        "return_logprob": True,
        "token_ids_logprob": [_NO_TOKEN],
    }
    try:
        read_text(url, "/generate", body, timeout=CONTROL_S)
    except Refused as error:
        found = _VOCABULARY.search(str(error))
        return int(found[1]) if found else None
    return None


def _context_length(url: str) -> int | None:
    try:
        cards = json.loads(read_text(url, "/v1/models", timeout=CONTROL_S))["data"]
        return int(cards[0]["max_model_len"])
    except (Refused, ValueError, LookupError, TypeError):
        return None
