"""What a person writes of fleets that serve without training: `tributary fleet up FILE`."""

from __future__ import annotations

import ipaddress
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, NonNegativeInt, PositiveInt, model_validator

from infra.access import LOOPBACK
from infra.config import Config


def _ipv4(text: str) -> str:
    try:
        return str(ipaddress.IPv4Address(text))
    except ValueError:
        raise ValueError(f"{text!r} is no IPv4 address; write one, e.g. 10.0.0.2") from None


class HostDevices(Config):
    """A host, and what of it the fleets may use."""

    address: Annotated[str, AfterValidator(_ipv4)] = LOOPBACK
    """where its servers listen, and the others reach them"""
    devices: PositiveInt = 1
    """GPUs, counted from 0; without GPUs, shares of its cores"""
    kind: str = ""
    """of the devices, e.g. h100; fleets ask for it as `device`"""


class Disaggregation(Config):
    """Servers that prefill prompts, and servers that decode from the keys and values they send."""

    prefill: PositiveInt = 1
    """servers"""
    decode: PositiveInt = 1
    """servers"""
    transfer: Literal["mooncake", "nixl"] = "mooncake"
    """what moves keys and values between them"""


class ServedFleet(Config):
    """The servers of one model."""

    model: str
    """an artifact, a stage, an alias, a folder, or hf:ORG/NAME@REVISION"""
    servers: PositiveInt = 1
    """that answer whole requests"""
    disaggregated: Disaggregation | None = None
    """in place of those: prefill and decode apart"""
    tp_per_server: PositiveInt = 1
    """devices of one server"""
    attention_dp: PositiveInt = 1
    """parts of a server that each attend to requests of their own; experts and MLPs stay shared"""
    hosts_per_server: PositiveInt = 1
    """hosts that one server's devices lie on, as many on each"""
    device: str = ""
    """the kind of device that it wants; empty: any"""
    routing: Literal["cache_aware", "sticky", "spread"] = "cache_aware"
    """cache_aware: to the server that knows the longest beginning of a request; sticky: by the
    request's header X-SMG-Routing-Key; spread: in turn"""
    max_requests: PositiveInt | None = None
    """most requests under way at the fleet's servers together; None: no bound"""
    max_waiting: NonNegativeInt = 1000
    """requests beyond `max_requests` that may wait; further ones are refused with 429"""
    max_wait_seconds: PositiveInt = 600
    """how long each may wait; then it is refused with 408"""
    max_total_tokens: PositiveInt | None = None
    """KV-cache capacity of one server, in tokens; None: on a GPU what fits beside the weights, on a
    CPU 16384"""
    tool_parser: str = ""
    """SGLang's parser of tool calls; none: no parsing; empty: by the chat template"""
    reasoning_parser: str = ""
    """SGLang's parser of thinking; likewise"""
    sglang: dict[str, Any] = Field(default_factory=dict)
    """SGLang server arguments, passed through"""

    @model_validator(mode="after")
    def _one_form(self) -> Self:
        if self.disaggregated is not None and "servers" in self.model_fields_set:
            raise ValueError(
                "`servers` answer whole requests and `disaggregated` ones do not; write one of them"
            )
        return self


class Topology(Config):
    """Fleets on hosts, behind one address."""

    host: Annotated[str, AfterValidator(_ipv4)] = LOOPBACK
    """address that clients talk to; beyond loopback a key is required"""
    port: Annotated[int, Field(ge=1, le=65535)] = 8000
    api_key_from: str = ""
    """environment variable with the key that requests must carry"""
    fleets: Annotated[dict[str, ServedFleet], Field(min_length=1)]
    """by the name that requests give as `model`"""
    hosts: Annotated[tuple[HostDevices, ...], Field(min_length=1)] | None = None
    """None: this host alone, with all of its devices. The first one has the routers"""
    first_port: Annotated[int, Field(ge=1024, le=60000)] = 31000
    """where several hosts are: servers take 20 ports each from here on"""

    @model_validator(mode="after")
    def _different_hosts(self) -> Self:
        addresses = [host.address for host in self.hosts or ()]
        for address in addresses:
            if addresses.count(address) > 1:
                raise ValueError(f"hosts: {address} is named twice; write each host once")
        return self
