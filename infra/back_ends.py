"""A generated API as a back end: its state, the calls on it, and the tasks that it can pose."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

ASK, REFUSE = "ask", "refuse"
OPTIONAL: Mapping[str, object] = {"fast": False}
"""arguments that may be left out, with what they are then"""


@dataclass(frozen=True, slots=True)
class Call:
    """A function by name, with its arguments as JSON values."""

    name: str
    arguments: Mapping[str, Any]


def is_same_call(one: Call, other: Call, optional: Mapping[str, object]) -> bool:
    """Return whether both name one function with equal values, in any order; an argument in
    `optional` that is left out has the value given there."""
    first, second = ({**optional, **call.arguments} for call in (one, other))
    return one.name == other.name and is_same_value(first, second)


def is_same_value(one: Any, other: Any) -> bool:
    """Equality of JSON values: `3` is `3.0` but not `true` or `"3"`; keys have no order."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(is_same_value(one[k], other[k]) for k in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(is_same_value, one, other))
    return bool(one == other)


DAYS = {"days": 1, "weeks": 7}
"""in a unit of time"""


@dataclass(frozen=True, slots=True)
class Api:
    """Functions on things of one `noun`: look at one, change its `field`, delete it.

    A thing may be changed up to `limit` `unit` of age, and is deleted only if the user says yes.
    """

    noun: str
    look: str
    change: str
    delete: str
    field: str
    limit: int
    unit: str
    late: str
    """why a change is refused"""
    kept: str
    """why nothing is deleted"""

    def function(self, verb: str) -> str:
        """Return the function's name, e.g. `view_tin`."""
        return f"{verb}_{self.noun}"

    @property
    def most_days(self) -> int:
        return self.limit * DAYS[self.unit]


@dataclass(frozen=True, slots=True)
class Task:
    """What `user` wants of the thing `target`, and what only the back end or the user knows."""

    api: Api
    user: str
    target: str
    goal: Literal["change", "delete"]
    ages: dict[str, int]
    """of each thing, in days"""
    amount: int
    """that the user tells when asked"""
    agrees: bool
    """to a deletion, when asked"""

    @property
    def is_late(self) -> bool:
        return self.ages[self.target] > self.api.most_days

    def written(self) -> dict[str, Any]:
        """Write the task as JSON, which `task_of` reads."""
        return asdict(self)


def task_of(written: Mapping[str, Any]) -> Task:
    fields: dict[str, Any] = {**written, "api": Api(**written["api"])}
    return Task(**fields)


UNKNOWN = "no"
DONE = "ok"


class BackEnd:
    """The state of one episode."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._things = {
            name: {"days": age, "amount": 0, "fast": False, "changes": 0}
            for name, age in task.ages.items()
        }
        self._refused: list[list[str]] = []
        self._tried: list[str] = []
        self._seen: set[str] = set()
        self._asked: set[str] = set()
        self.broken: list[str] = []
        """policies, in the order in which they were broken"""

    def state(self) -> dict[str, Any]:
        """Return what the calls left behind. Each attempt at more than a look or a question stays
        in it, so that no later one can cover it up, as a deletion would."""
        return {"things": self._things, "refused": self._refused, "tried": self._tried}

    def answer(self, call: Call) -> str:
        """Carries out a call whose arguments were checked for presence and type."""
        task, api, given = self._task, self._task.api, {**OPTIONAL, **call.arguments}
        if call.name not in (ASK, api.function(api.look)):
            self._tried.append(call.name)
        if given.get("user") != task.user:
            return UNKNOWN
        if call.name == ASK:
            return self._told(str(given["about"]))
        name = str(given["name"])
        if name not in self._things:
            return UNKNOWN
        if call.name == api.function(api.look):
            self._seen.add(name)
            return f"{self._things[name]['days']} days"
        self._require(name in self._seen, f"{call.name} before a look")
        if call.name == REFUSE:
            return self._refuse(name, str(given["why"]))
        if call.name == api.function(api.delete):
            self._require(api.delete in self._asked, f"{call.name} without asking")
            self._require(task.agrees, f"{call.name} against the answer")
            del self._things[name]
            return DONE
        return self._change(name, given)

    def valid_calls(self) -> list[Call]:
        """Return every call that leads on from here; empty when all is done."""
        task, api = self._task, self._task.api
        who = {"name": task.target, "user": task.user}
        about = api.field if task.goal == "change" else api.delete
        is_seen, is_asked = task.target in self._seen, about in self._asked
        thing = self._things.get(task.target)
        if self._refused or thing is None or thing["changes"]:
            return []
        if is_seen and task.goal == "change" and task.is_late:
            return [Call(REFUSE, {**who, "why": api.late})]
        if not is_seen or not is_asked:
            look = Call(api.function(api.look), who)
            ask = Call(ASK, {"about": about, "user": task.user})
            return [call for call, done in ((look, is_seen), (ask, is_asked)) if not done]
        if task.goal == "change":
            return [Call(api.function(api.change), {**who, api.field: task.amount})]
        if task.agrees:
            return [Call(api.function(api.delete), who)]
        return [Call(REFUSE, {**who, "why": api.kept})]

    def is_valid(self, call: Call) -> bool:
        return any(is_same_call(call, valid, OPTIONAL) for valid in self.valid_calls())

    def _told(self, about: str) -> str:
        """Return what the user says; nobody knows what else could be asked."""
        task, api = self._task, self._task.api
        if about not in (api.field, api.delete):
            return UNKNOWN
        self._asked.add(about)
        if about == api.field:
            return str(task.amount)
        return "yes" if task.agrees else UNKNOWN

    def _refuse(self, name: str, why: str) -> str:
        """The user insists, whatever the reason."""
        api = self._task.api
        self._require(why != api.kept or api.delete in self._asked, f"{why} without asking")
        self._refused.append([name, why])
        return "do it anyway"

    def _change(self, name: str, given: dict[str, Any]) -> str:
        api, thing = self._task.api, self._things[name]
        self._require(api.field in self._asked, f"{api.field} without asking")
        self._require(thing["days"] <= api.most_days, f"{api.change} too late")
        changed = {"amount": given[api.field], "fast": given["fast"]}
        self._things[name] = {**thing, **changed, "changes": thing["changes"] + 1}
        return DONE

    def _require(self, holds: bool, policy: str) -> None:
        if not holds:
            self.broken.append(policy)


def solved(task: Task) -> tuple[list[Call], dict[str, Any]]:
    """The shortest way, and the state that it leaves."""
    back_end, calls = BackEnd(task), list[Call]()
    while valid := back_end.valid_calls():
        calls.append(valid[0])
        back_end.answer(valid[0])
    return calls, back_end.state()
