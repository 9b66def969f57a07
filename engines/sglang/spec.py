"""What a recipe says about generation. Imports nothing heavy."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, PositiveInt, model_validator

from infra.config import RESULT_NEUTRAL, Config


def server_address(text: str) -> str:
    """`http://HOST:PORT` without anything after it. Raises ValueError that says what is wrong."""
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ValueError(f"{text!r} is no address ({error}); write http://HOST:PORT") from None
    if "@" in parts.netloc:
        raise ValueError(
            "an address must not hold a password; give the servers' key in the environment variable"
            " EXTERNAL_FLEET_KEY"
        )
    if parts.scheme != "http" or not host or not port or parts.path.strip("/") or parts.query:
        raise ValueError(f"{text!r} is no address of a server; write http://HOST:PORT")
    return f"http://{parts.netloc}"


def _different(addresses: tuple[str, ...]) -> tuple[str, ...]:
    if len(set(addresses)) < len(addresses):
        raise ValueError("names an address twice; write each once")
    return addresses


CPU_TOKENS = 16384
_TYPES = {"fp32": "float32", "bf16": "bfloat16"}
MOST_RUNNING = 4096
"""turns that SGLang runs at once, unless told otherwise: more of them would only wait there"""
Routing = Literal["sticky", "spread"]
Quantization = Literal["fp8-block"]
ServerAddress = Annotated[str, AfterValidator(server_address)]


_SAYS_EXPERTS = "enable_return_routed_experts"


class FleetSpec(Config):
    """SGLang servers that share one architecture and one set of weights."""

    max_total_tokens: Annotated[PositiveInt | None, RESULT_NEUTRAL] = None
    """KV-cache capacity of one server, in tokens; None: on a GPU what fits beside the weights, on a
    CPU 16384"""
    context_length: PositiveInt | None = None
    """longest sequence; None: the model's own limit"""
    sglang: dict[str, Any] = Field(default_factory=dict)
    """SGLang server arguments, passed through; names as in SGLang, with underscores"""
    quantization: Quantization | None = None
    """`fp8-block`: servers have the layers' matrices in FP8 with a scale for each block of 128 x
    128 numbers, and on a GPU round what these are multiplied with as well; None: in the model's own
    type"""
    external: Annotated[tuple[ServerAddress, ...], AfterValidator(_different), RESULT_NEUTRAL] = ()
    """addresses of running servers that are not ours, or of a router that knows them, e.g.
    http://10.0.0.2:30000; empty: servers of our own"""
    routing: Annotated[Routing, RESULT_NEUTRAL] = "sticky"
    """sticky: the rollouts of a group and all turns of a rollout go to the server that has their
    beginning in its cache; spread: each request goes to the server with the fewest of them"""
    max_turns_per_server: Annotated[PositiveInt | None, RESULT_NEUTRAL] = None
    """most turns under way at once, for each server; others wait in the stage until a place is
    free; None: 4,096, or more where SGLang is told to run more at once"""

    @model_validator(mode="after")
    def _quantises_servers_of_ours(self) -> Self:
        if self.quantization is not None and self.external:
            raise ValueError(
                "quantization: servers of ours quantise what they read from a folder, and those of"
                " `external` would not; leave one of the two out"
            )
        return self

    @property
    def most_turns(self) -> int:
        """Return how many turns may be at one server at once."""
        running = self.sglang.get("max_running_requests") or 0
        at_most = MOST_RUNNING * int(self.sglang.get("dp_size") or 1)
        return self.max_turns_per_server or max(at_most, int(running))

    @property
    def least_tokens(self) -> int:
        """KV-cache capacity that one server has at least."""
        return self.max_total_tokens or CPU_TOKENS

    def of_trainer(self, precision: str) -> FleetSpec:
        """Return the settings with the trainer's type of weights ("fp32" or "bf16"), unless another
        one is written."""
        if self.sglang.get("dtype", "auto") != "auto":
            return self
        options = self.sglang | {"dtype": _TYPES[precision]}
        return self.model_copy(update={"sglang": options})

    def with_experts(self) -> FleetSpec:
        """Return the same for servers that say which experts they chose."""
        options = self.sglang | {_SAYS_EXPERTS: True}
        return self.model_copy(update={"sglang": options})

    @property
    def says_experts(self) -> bool:
        return bool(self.sglang.get(_SAYS_EXPERTS))

    def of_servers(self) -> dict[str, Any]:
        """Return what its servers are started with, without what concerns their clients only."""
        return self.model_dump(mode="json", exclude={"routing", "max_turns_per_server"})
