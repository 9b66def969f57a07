"""The one exception tree of Tributary.

Every message says what happened, where, why, and what to do next. Exit codes of the command:
0 done, 1 failed, 2 bad input, 130 detached.
"""

from __future__ import annotations

from typing import Literal

from infra.shown_text import masked

BAD_INPUT, DETACHED = 2, 130


class TributaryError(Exception):
    """Root of all errors that Tributary raises on purpose."""

    exit_code: int = 1
    #: whether the same stage may be tried again without a person changing anything
    retryable: bool = False

    def __init__(self, *told: object) -> None:
        """Secrets of addresses are masked: the text is printed, and kept in logs and records."""
        super().__init__(*(masked(each) if isinstance(each, str) else each for each in told))


class InputError(TributaryError):
    """What a person wrote (recipe, flag, hook, folder) cannot be used; nothing was started."""

    exit_code = BAD_INPUT


class StorageError(TributaryError):
    """The store refused, is full, read-only or out of reach."""


class CorruptArtifact(StorageError):
    """A file of an artifact differs from its manifest; the artifact is not used."""


class DamagedRecord(StorageError):
    """A file of a run's record cannot be read; other runs are not concerned."""


class FencedOut(StorageError):
    """Another attempt of this stage committed first or took its place; this one must not write."""

    retryable = True


class InfrastructureError(TributaryError):
    """A part of the stack (Ray, Prefect, MLflow, a server) is down or broke: retry is sensible."""

    retryable = True


class OutOfReach(InfrastructureError):
    """A service of others answered nobody for longer than its bound; the stage can be resumed."""

    retryable = False


class EngineError(InfrastructureError):
    """A generation server or a trainer rank failed or answered with a refusal."""


class LeaseLost(EngineError):
    """A lease on engines expired or was taken over; its holder must stop using them."""


class StageStalled(InfrastructureError):
    """A stage made no progress within its bound; names the file with its processes' stacks."""


class AgreementError(TributaryError):
    """Trainer and engine disagree on logprobs beyond the gate; says on which sample and where."""


class TrainingStopped(TributaryError):
    """A bound of the recipe ended training: NaN, collapse, or too many failed samples."""


class OutOfMemory(TributaryError):
    """A process had too little memory: the same again would end the same way."""

    def __init__(self, message: str, of: Literal["trainer", "server", "job"]) -> None:
        """`of`: the process that ran out of memory."""
        super().__init__(message, of)
        self.of: Literal["trainer", "server", "job"] = of

    def __str__(self) -> str:
        return str(self.args[0])


class StageFailed(TributaryError):
    """A stage ended without an artifact; carries the log path and the command that resumes."""
