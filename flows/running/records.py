"""Runs on record: what `report`, `resume` and the live table read, with or without Prefect.

ROOT/runs/<run>/recipe.json          the resolved recipe and which flow it is
                state.json           the run's state, times, links
                stages/<stage>.json  each stage's state, digest, artifact, times, progress
$TRIBUTARY_HOME/runs/<run>.json      where this home finds the run
"""

from __future__ import annotations

import logging
import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import ConfigDict, Field, PlainSerializer, ValidationError

from flows.explain import nearest, validated
from flows.load import validate_recipe
from flows.recipe import MAX_NAME, NAME_PATTERN, Recipe, Storage
from flows.running.secrets import use_secrets
from infra.config import Config, FileName, Found
from infra.errors import DamagedRecord, InputError, TributaryError
from infra.home import home
from infra.json_text import writable
from infra.store.manifest import StageWarning
from infra.store.store import Store

State = Literal["pending", "running", "completed", "cached", "failed", "stopped"]
DONE = ("completed", "cached")
"""states that a stage does not leave"""
_log = logging.getLogger(__name__)
_SHOWN = 5


Said = Annotated[str, PlainSerializer(writable)]
"""an error may quote half an emoji, which no file holds"""
Read = TypeVar("Read", bound=Config)


class StageRecord(Found):
    """A stage of a run as of now."""

    # A metric may be NaN; JSON has no word for it.
    model_config = ConfigDict(ser_json_inf_nan="strings")

    name: FileName
    kind: str
    state: State = "pending"
    digest: str = ""
    cached: bool = False
    seconds: float = 0.0
    """wall time in this run, also over resumes"""
    before: float = 0.0
    """of `seconds`, those of the goes before the last one"""
    started: float = 0.0
    """Unix time of the last go"""
    artifact: str = ""
    """URL of the artifact's folder"""
    job: FileName = ""
    mine: bool = False
    """whether this run started the job; a job that was joined is not ours to stop"""
    done: int = 0
    total: int = 0
    begun: int = 0
    """what was done already at the first progress of the present go"""
    begun_at: float = 0.0
    """Unix time of it; 0: none yet"""
    told: float = 0.0
    """Unix time of the last progress"""
    message: Said = ""
    metrics: dict[str, float] = Field(default_factory=dict)
    warnings: list[StageWarning] = Field(default_factory=list[StageWarning])
    """of its artifact; while it runs, the newest"""

    @property
    def is_done(self) -> bool:
        return self.state in DONE

    def seconds_at(self, now: float) -> float:
        return _seconds_at(self, now)

    def seconds_left(self, now: float) -> float | None:
        """Return the seconds that are left at the pace of the present go; None while that is
        unknown."""
        steps = self.done - self.begun
        has_pace = self.begun_at > 0 and steps >= 1 and self.done <= self.total
        if self.state != "running" or not has_pace:
            return None
        pace = (self.told - self.begun_at) / steps
        return max(0.0, pace * (self.total - self.done) - (now - self.told))


class RunState(Config):
    state: State = "pending"
    started: float = 0.0
    """Unix time of the last go"""
    seconds: float = 0.0
    """wall time, also over resumes; while it runs, that of the times before"""
    message: Said = ""
    flow_run: str = ""
    """id of the Prefect flow run that was last to work on it"""
    links: dict[str, str] = Field(default_factory=dict)
    """pages by title: the Prefect run, the MLflow comparison, the report"""

    def seconds_at(self, now: float) -> float:
        return _seconds_at(self, now)


def _seconds_at(record: StageRecord | RunState, now: float) -> float:
    """Seconds of work up to `now` (Unix time), those of the present go included. A clock that was
    set back takes none away."""
    present = max(0.0, now - record.started) if record.state == "running" else 0.0
    return record.seconds + present


class RunHead(Config):
    """Says what a run is, and is written once."""

    run: FileName
    flow: str
    """deployment it goes through, e.g. `post-train`"""
    arguments: dict[str, Any] = Field(default_factory=dict)
    """the flow's arguments in addition to the recipe"""
    recipe: dict[str, Any]
    asked: dict[str, Any] = Field(default_factory=dict)
    """how the recipe was asked for by name, as a form's parameters; empty: in full"""
    in_process: bool = False
    created: float


class RunEntry(Config):
    """A home's pointer to a run."""

    run: FileName
    name: str
    recipe: str
    root: str
    credentials: str = ""
    """as `storage.credentials` of its recipe"""
    created: float

    def is_called(self, wanted: str) -> bool:
        """Tell whether the run is called so, by its id, its name or its recipe's name."""
        return wanted in (self.run, self.name or self.run, self.recipe)

    @property
    def storage(self) -> Storage:
        return Storage(root=self.root, credentials=self.credentials)


class RunRecord:
    """One run's files in its store. Raises DamagedRecord for a file that cannot be read."""

    def __init__(self, store: Store, run: str) -> None:
        self.store, self.run = store, run
        self._folder = f"runs/{run}"

    @property
    def exists(self) -> bool:
        return self.store.exists(f"{self._folder}/recipe.json")

    def head(self) -> RunHead:
        """Raises InputError when the store has lost the run."""
        try:
            return self._read(
                RunHead,
                "recipe.json",
                "The run cannot go on: start a new one; finished stages are cached",
            )
        except FileNotFoundError:
            raise InputError(
                f"run {self.run} is recorded in {home()}, but does not exist in"
                f" {self.store.root} any more: "
                "it was deleted, or the store moved. Start a new run; stages that are in the"
                " store are cached"
            ) from None

    def recipe(self) -> Recipe:
        return validate_recipe(self.head().recipe, f"run {self.run}")

    def state(self) -> RunState:
        try:
            again = f"Delete it: `tributary resume {self.run}` writes it again"
            return self._read(RunState, "state.json", again)
        except FileNotFoundError:
            return RunState()

    def put_state(self, state: RunState) -> None:
        self.store.write(f"{self._folder}/state.json", state.model_dump_json(indent=1).encode())

    def add_links(self, links: Mapping[str, str]) -> None:
        state = self.state()
        self.put_state(state.model_copy(update={"links": {**state.links, **links}}))

    def stages(self, known: Mapping[str, StageRecord] | None = None) -> dict[str, StageRecord]:
        """Return the stages by name. Those of `known` that are done are not read again: each costs
        S3 requests."""
        done = {k: stage for k, stage in (known or {}).items() if stage.state in DONE}
        files = [n for n in self.store.listdir(f"{self._folder}/stages") if n.endswith(".json")]
        names = [file.removesuffix(".json") for file in files]
        found = [done.get(name) or self.stage(name) for name in names]
        return {stage.name: stage for stage in found if stage is not None}

    @property
    def has_jobs(self) -> bool:
        """Return whether jobs may go on, as those of a run that was suspended or whose flow died
        do.
        """
        return any(stage.state == "running" for stage in self.stages().values())

    def stage(self, name: str) -> StageRecord | None:
        again = f"Delete it and `tributary resume {self.run}`: a finished stage is cached"
        try:
            return self._read(StageRecord, f"stages/{name}.json", again)
        except FileNotFoundError:
            return None

    def take_over(self, stages: Iterable[StageRecord]) -> None:
        """Let a new run find stages of earlier ones as these made them, whatever has changed."""
        for stage in stages:
            self.put_stage(StageRecord(name=stage.name, kind=stage.kind, digest=stage.digest))

    def put_stage(self, stage: StageRecord) -> None:
        path = f"{self._folder}/stages/{stage.name}.json"
        self.store.write(path, stage.model_dump_json(indent=1).encode())

    def _read(self, model: type[Read], file: str, advice: str) -> Read:
        path = f"{self._folder}/{file}"
        return _parsed(model, self.store.read(path), self.store.url(path), advice)


def store_of(storage: Storage) -> Store:
    """Return a recipe's store, opened with the credentials that it names."""
    use_secrets(storage.credentials)
    return Store(storage.root.replace("$TRIBUTARY_HOME", str(home())))


def store_to_show(root: str = "") -> Store:
    """The store at `root`, with the credentials of this home's latest run there; without a root
    the latest run's; else the default one. Raises InputError where nothing is at `root`."""
    known = [entry.storage for entry in run_entries() if root in ("", entry.root)]
    written = {"root": root} if root else {}
    store = store_of(known[0] if known else validated(Storage, written, "--"))
    if root and not store.exists(""):
        raise InputError(f"--root {root}: there is no such folder; give a recipe's `storage.root`")
    return store


def store_at(root: str) -> Store:
    """The store with this `Store.root`, with the credentials of this home's latest run there, and
    with no other run's."""
    for entry in run_entries():
        if Store(entry.root).root == root:
            return store_of(entry.storage)
    return Store(root)


def check_name(name: str) -> None:
    """Raises InputError for a run's name that no folder, page or command could bear."""
    if name and not (re.fullmatch(NAME_PATTERN, name) and len(name) <= MAX_NAME):
        raise InputError(
            f"--name {name}: a run's name has small letters, digits and `-`, begins with a letter"
            f" or digit, and has at most {MAX_NAME} characters"
        )


def has_run(wanted: str) -> bool:
    """Return whether `find_run` finds one."""
    return any(entry.is_called(wanted) for entry in run_entries())


def find_run(wanted: str = "") -> RunRecord:
    """Find a run by id, by its name, by its recipe's name (the latest), or the latest of all."""
    entries = run_entries()
    for entry in entries:
        if not wanted or entry.is_called(wanted):
            _tell_apart(wanted, entry, entries)
            return RunRecord(store_of(entry.storage), entry.run)
    damaged = damaged_entries()
    if wanted in damaged:
        raise damaged[wanted]
    if not entries and not damaged:
        raise InputError(f"there are no runs in {home()}; start one with `tributary run RECIPE`")
    latest = ", ".join(entry.run for entry in entries[:_SHOWN])
    names = {name for entry in entries for name in (entry.run, entry.name, entry.recipe)}
    hint = _meant(wanted, entries, names) or nearest(wanted, names)
    raise InputError(
        f"no run, run name or recipe `{wanted}` in {home()}. Latest runs: {latest}{hint}"
    )


def _meant(wanted: str, entries: Sequence[RunEntry], names: Collection[str]) -> str:
    """Return what somebody named in the place of a run, if it can be told."""
    owner = wanted.partition("/")[0]
    if owner in names:
        return f"; name the run alone: {owner}"
    if Path(wanted).expanduser().is_file():
        return f"; {wanted} is a file: a run is called by its id, its name or its recipe's `name:`"
    for newest in entries[:1]:
        with suppress(TributaryError):
            if RunRecord(store_of(newest.storage), newest.run).stage(wanted) is not None:
                return f"; `{wanted}` is a stage of {newest.run}: name the run"
    return ""


def find_run_of(run: str, stage: str, command: str) -> tuple[RunRecord, str]:
    """Find the run and stage that RUN STAGE, or RUN/STAGE, name; swapped ones are refused."""
    if not stage and not has_run(run):
        run, _, stage = run.partition("/")
    if stage and has_run(stage) and not has_run(run):
        swapped = shlex.join(["tributary", command, stage, run])
        raise InputError(f"`{stage}` is a run and `{run}` is none: the run comes first: {swapped}")
    return find_run(run), stage


def find_run_with(run: str, stage: str) -> RunRecord:
    """The newest run of this name that has finished the stage; else the newest of this name."""
    for entry in [entry for entry in run_entries() if entry.is_called(run)]:
        record = RunRecord(store_of(entry.storage), entry.run)
        if (found := record.stage(stage)) and found.is_done:
            return record
    return find_run(run)


def _tell_apart(wanted: str, newest: RunEntry, entries: Iterable[RunEntry]) -> None:
    """Say so where a name that people gave to runs means several of them."""
    same = [entry.run for entry in entries if wanted and entry.name == wanted]
    if len(same) > 1 and newest.run != wanted:
        others = ", ".join(run for run in same if run != newest.run)
        warn_once(f"{wanted} is the newest run of that name, {newest.run}, and not {others}")


def runs_of(recipe: str, store: Store) -> Iterator[RunRecord]:
    """This home's runs of a recipe that are still in a store, newest first; damaged ones are left
    out with a warning."""
    for entry in run_entries():
        if entry.recipe == recipe and Store(entry.root).root == store.root:
            record = RunRecord(store, entry.run)
            try:
                if record.exists and record.head() and record.state():
                    yield record
            except DamagedRecord as error:
                warn_once(f"run {entry.run} is left out: {error}")


def run_entries() -> list[RunEntry]:
    """This home's runs, newest first; those whose entry is damaged are left out with a warning."""
    entries, damaged = _entries()
    for name, error in damaged.items():
        warn_once(f"run {name} is left out: {error}")
    return sorted(entries, key=lambda entry: entry.created, reverse=True)


def damaged_entries() -> dict[str, DamagedRecord]:
    """Why entries of this home cannot be read, by the name of their run."""
    return _entries()[1]


@cache
def warn_once(text: str) -> None:
    """What is looked at many times is said once."""
    _log.warning("%s", text)


def _entries() -> tuple[list[RunEntry], dict[str, DamagedRecord]]:
    entries: list[RunEntry] = []
    damaged: dict[str, DamagedRecord] = {}
    for file in sorted((home() / "runs").glob("*.json")):
        advice = "Delete it: the run's stages stay in its store, where a new run finds them"
        try:
            entries.append(_parsed(RunEntry, file.read_bytes(), str(file), advice))
        except DamagedRecord as error:
            damaged[file.stem] = error
        except FileNotFoundError:  # deleted meanwhile
            continue
        except OSError as error:
            damaged[file.stem] = DamagedRecord(f"{file} cannot be read: {error}. {advice}")
    return entries, damaged


def _parsed(model: type[Read], data: bytes, place: str, advice: str) -> Read:
    try:
        return model.model_validate_json(data)
    except ValidationError as error:
        raise DamagedRecord(f"{place} cannot be read: {_fault(error)}. {advice}") from error


def _fault(error: ValidationError) -> str:
    found = error.errors(include_url=False, include_input=False)
    named = ["`" + ".".join(map(str, each["loc"])) + "`" for each in found]
    if all(each["type"] == "extra_forbidden" for each in found):
        names = ", ".join(named[:_SHOWN])
        return f"it has {names}, which this version of Tributary does not know; a newer one may"
    at = f"{named[0]}: " if found[0]["loc"] else ""
    return f"{at}{found[0]['msg']}"
