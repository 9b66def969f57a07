"""What a server says it holds."""

from __future__ import annotations

from dataclasses import dataclass

from engines.sglang.http import call
from engines.weights.transport import CONTROL_S

CHECK_S = 120.0
"""it reads all its weights"""


@dataclass(frozen=True, slots=True)
class ServerWeights:
    """Example: ServerWeights(version="7", checksum="9f2c...")

    Servers with the same number of ranks that hold the same bits have the same checksum, whichever
    way these came.
    """

    version: str
    checksum: str


def server_weights(url: str) -> ServerWeights:
    """The version that a server states and the checksum of the weights in its memory.

    Raises EngineError if it does not answer.
    """
    version = str(call(url, "/model_info", timeout=CONTROL_S)["weight_version"])
    checked = call(url, "/weights_checker", {"action": "checksum"}, timeout=CHECK_S)
    return ServerWeights(version, str(checked["per_engine_checksum"]))
