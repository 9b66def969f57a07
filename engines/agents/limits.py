"""What clients and sessions of the gateway may use."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """What one session may use, beside the rollout's budget of tokens."""

    turns: int = 200
    """answered or not"""
    turn_tokens: int = 0
    """of one turn; 0: all that is left of the budget, and turns are sampled one after another"""
    samples: int = 64
    """lines of tokens: each branch is one"""
    parallel: int = 16
    """requests at the same time"""
    counts: int = 2000
    """requests that only count tokens"""
    text: int = 64 << 20
    """characters of messages that are kept: a template may leave out most of a message, so that its
    tokens are few"""


@dataclass(frozen=True, slots=True)
class GatewayLimits:
    """What connections may use."""

    body: int = 8 << 20
    """bytes of a request"""
    sessions: int = 4096
    silence_s: float = 10.0
    """without a sign of life in a stream"""
    stall_s: float = 60.0
    """that a client may take to send its request, or to read a piece of the answer"""
