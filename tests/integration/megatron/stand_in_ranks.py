"""Ranks that hold no torch: they do what a test tells them."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engines.devices.waiting_time import ProcessAddress, address_of_this_actor
from engines.megatron.ranks.rank import TrainerJob
from infra.errors import AgreementError, InputError


class StandInRank:
    """Does what the name of a folder to save says; `logprobs` tells who it is."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.gpu = int(environment.get("CUDA_VISIBLE_DEVICES") or -1)
        assert self.gpu >= 0 or environment["OMP_NUM_THREADS"] == "1", "CPU ranks have one thread"
        self.job: TrainerJob | None = None
        self.rank = -1
        self.asked = 0
        """how often whether it has written"""

    def place(self) -> ProcessAddress:
        return address_of_this_actor()

    def meeting(self, host: str) -> str:
        return f"tcp://{host}:1"

    def start(self, job: TrainerJob, rank: int, rendezvous: str) -> None:
        assert self.job is None, "this rank was not reset"
        assert rendezvous.startswith("tcp://")
        assert rendezvous.endswith(":1")
        if job.model == Path("bad-model"):
            raise InputError("no such model")
        self.job, self.rank = job, rank

    def call(self, method: str, arguments: tuple[Any, ...], samples: Any = None) -> Any:
        assert self.job is not None
        if method in ("logprobs", "values"):
            return [[os.getpid(), self.rank, self.gpu]] if self.rank == 0 else None
        if method == "finish_save":
            self.asked += 1
            return self.asked > 3
        if str(arguments[0]) == "in-time":
            return None
        rank, _, deed = str(arguments[0]).partition("-")
        if int(rank) != self.rank:
            if deed != "hang":
                threading.Event().wait()  # as a rank does whose peer left a collective
        elif deed == "die":
            os._exit(7)
        elif deed == "disagree":
            raise AgreementError("sample s3 differs by 0.2 at position 7")
        elif deed == "bug":
            raise ZeroDivisionError("float division by zero")
        elif deed == "hang":
            threading.Event().wait()
        return None

    def stop(self) -> None:
        self.job, self.rank = None, -1


class BrokenRank(StandInRank):
    def __init__(self, environment: Mapping[str, str]) -> None:
        super().__init__(environment)
        raise ImportError("no module named megatron")
