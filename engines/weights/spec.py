"""What a recipe says about how weights reach servers. Imports nothing heavy."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import model_validator

from infra.config import Config

TransportName = Literal["auto", "cuda_ipc", "shared_memory", "broadcast", "disk", "disk_delta"]


class WeightTransport(Config):
    """How published weights reach the servers of a stage."""

    transport: TransportName = "auto"
    """`auto`: on one host CUDA IPC where servers share the trainer's GPUs, broadcast where they
    have others, shared memory on CPUs; else broadcast if the servers reach the ranks, else the
    changes through `url`"""
    url: str = ""
    """folder that all ranks and servers reach, as a path or fsspec URL, e.g. `s3://bucket/weights`;
    `disk` needs a path that is the same on every host. Each stage has a folder of its own in it"""

    @model_validator(mode="after")
    def _has_a_folder_if_it_needs_one(self) -> Self:
        needs_a_folder = self.transport in ("disk", "disk_delta")
        if needs_a_folder and not self.url:
            raise ValueError(
                f"transport `{self.transport}` needs `url`: a folder that all ranks and servers "
                "reach, e.g. /shared/weights or s3://bucket/weights"
            )
        if self.transport != "auto" and not needs_a_folder and self.url:
            raise ValueError(f"transport `{self.transport}` uses no folder: leave `url` out")
        if self.transport == "disk" and "://" in self.url and not self.url.startswith("file://"):
            raise ValueError(
                "transport `disk` has servers read a folder themselves, which SGLang can do only "
                "on a file system; for other URLs choose `disk_delta`"
            )
        return self
