"""Attempts at a stage, in the store: who made them, whether they are alive, how they ended.

    ROOT/attempts/<kind>/<digest12>/<n>.claim.json    created once: the owner
                                    <n>.pulse         rewritten by the job while it lives
                                    <n>.end.json      written when the attempt is over

The number of the newest claim is the fencing token: it never comes from Ray's job history, which
dies with the head. Two homes that share a store see each other here and nowhere else.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, ValidationError

from infra.config import Config
from infra.errors import FencedOut, StorageError
from infra.json_text import writable
from infra.store.store import Store


class Owner(Config):
    """Who made an attempt. `home` and `launcher` tell whether we can reach its job."""

    home: str
    launcher: str
    job: str
    run: str


class End(Config):
    """How an attempt ended, as written by its job or by the run that found it dead."""

    outcome: Literal["done", "failed", "stopped"]
    error: str = ""
    """type of the exception"""
    message: Annotated[str, AfterValidator(writable)] = ""
    retryable: bool = False
    exit_code: int = 1


class Claim(Config):
    number: int
    owner: Owner
    end: End | None = None


_UNKNOWN = Owner(home="", launcher="", job="", run="")
_DAMAGED = End(outcome="failed", message="what was written about it is damaged", retryable=True)


def _is_cut_short(error: ValidationError) -> bool:
    """Return whether it is no JSON; a field of a newer version is no damage."""
    return error.errors()[0]["type"] == "json_invalid"


class Claims:
    """The attempts at one stage."""

    def __init__(self, store: Store, kind: str, digest: str) -> None:
        self._store = store
        self._folder = f"attempts/{kind}/{digest[:12]}"

    def latest(self) -> Claim | None:
        number = self._newest()
        return self.read(number) if number else None

    def check_newest(self, number: int) -> None:
        """Raises FencedOut when a later attempt was claimed: this one was given up for dead."""
        newest = self._newest()
        if newest > number:
            raise FencedOut(
                f"attempt {number} was given up, and attempt {newest} has replaced it: what it"
                f" wrote after that in {self._folder} does not count. Nothing is lost"
            )

    def read(self, number: int) -> Claim:
        """A claim that a power cut left without its owner is over: nobody can find its job."""
        try:
            owner = Owner.model_validate_json(self._store.read(self._path(number, "claim.json")))
        except ValidationError as error:
            if not _is_cut_short(error):
                raise
            return Claim(number=number, owner=_UNKNOWN, end=_DAMAGED)
        return Claim(number=number, owner=owner, end=self.end_of(number))

    def take(self, number: int, owner: Owner) -> Claim | None:
        """Claim this number; None when someone else was first."""
        try:
            self._store.create(self._path(number, "claim.json"), owner.model_dump_json().encode())
        except FileExistsError:
            return None
        return Claim(number=number, owner=owner)

    def end_of(self, number: int) -> End | None:
        path = self._path(number, "end.json")
        if not self._store.exists(path):
            return None
        try:
            return End.model_validate_json(self._store.read(path))
        except ValidationError as error:
            if not _is_cut_short(error):
                raise
            return _DAMAGED  # the attempt had ended all the same

    def finish(self, number: int, end: End) -> None:
        data = end.model_dump_json().encode()
        self._store.write(self._path(number, "end.json"), data, sync=True)

    def beat(self, number: int, beat: int) -> None:
        self._store.write(self._path(number, "pulse"), str(beat).encode())

    def pulse(self, number: int) -> bytes:
        """The last beat; what matters is that it changes, so clocks need not agree."""
        try:
            return self._store.read(self._path(number, "pulse"))
        except (FileNotFoundError, StorageError):
            return b""

    def _newest(self) -> int:
        """Number of the newest claim; 0 if there is none."""
        names = self._store.listdir(self._folder)
        return max((int(n.split(".")[0]) for n in names if n.endswith(".claim.json")), default=0)

    def _path(self, number: int, name: str) -> str:
        return f"{self._folder}/{number}.{name}"
