"""Refuses values of TRIBUTARY_* variables with which no stack could start, or which would be found
late, in a stage."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Iterator, Mapping

from infra.access import (
    ADDRESS_VARIABLE,
    HOST_VARIABLE,
    KEY_VARIABLE,
    given_key,
    listening_host,
    named_address,
)
from infra.errors import InputError
from infra.home import home
from infra.processes.variables import CHECK_WEIGHTS, is_on
from infra.stack import database, flow_jobs, services, stack_ports
from infra.store import evicted

_READ: Mapping[str, Callable[[], object]] = {
    "TRIBUTARY_HOME": home,
    HOST_VARIABLE: listening_host,
    ADDRESS_VARIABLE: lambda: _address(),
    KEY_VARIABLE: given_key,
    stack_ports.VARIABLE: lambda: stack_ports.fixed_ports(os.environ.get(stack_ports.VARIABLE, "")),
    database.VARIABLE: database.database,
    evicted.LIMIT_VARIABLE: evicted.limit_bytes,
    services.VARIABLE: services.kept_days,
    CHECK_WEIGHTS: lambda: is_on(CHECK_WEIGHTS),
    flow_jobs.TEMPLATE_VARIABLE: flow_jobs.job_template,
    flow_jobs.ELSEWHERE_VARIABLE: flow_jobs.is_elsewhere,
}
"""each that the docs name, with what reads it"""
_PREFIX = "TRIBUTARY_"


def require_variables() -> None:
    """Raises one InputError that names every variable with a wrong value, or nearly the name of
    one."""
    if problems := dict.fromkeys(_problems()):  # two may read one variable
        raise InputError("; ".join(problems))


def _problems() -> Iterator[str]:
    for read in _READ.values():
        try:
            read()
        except InputError as error:
            yield str(error)
    for name in sorted(os.environ):
        near = difflib.get_close_matches(name, _READ, n=1, cutoff=0.9)
        if name.startswith(_PREFIX) and name not in _READ and near:
            yield f"{name} is no variable that is read; did you mean {near[0]}?"


def _address() -> None:
    host, address = listening_host(), os.environ.get(ADDRESS_VARIABLE, "")
    if not named_address(host) and address not in ("", host):
        raise InputError(
            f"{ADDRESS_VARIABLE} is `{address}`, and is told to other hosts only with"
            f" {HOST_VARIABLE}=0.0.0.0, and that is {host}: set that, or unset {ADDRESS_VARIABLE}"
        )
