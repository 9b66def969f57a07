"""Secrets in the options of parts: referred to by name, never written out.

An option's value `secret:NAME` stands for the environment variable NAME of the process that makes
the part. A recipe is kept in records, artifacts, pages and cards, so it holds the name alone.

A process gets the secrets that it needs:

    up's environment, block ──▶ flow ──▶ job of a stage ──▶ its servers, its users' parts
                       └─ the store's ──▶ Ray

A secret of the store is needed by all that read or write it; one of a place that models come from,
by stages that name such a place; one that an option refers to, by stages with that option. Anything
else in the recipe's block is for the user's own parts, so every job gets it.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from infra.access import EXTERNAL_KEY_VARIABLE, sendable
from infra.errors import InputError
from infra.shown_text import holds_secret, masked

_REFERENCE = re.compile(r"secret:([A-Z][A-Z0-9_]*)")
_VARIABLE = re.compile(r"[A-Z][A-Z0-9_]*")
_IN_VARIABLE = re.compile(
    r"TOKEN(?!S|IZ)|KEY(?![A-Z])|SECRET|PASSW|CREDENTIAL|BEARER|COOKIE|WEBHOOK|(^|_)(PASS|AUTH|DSN)$"
)
"""what an environment variable that holds a secret is called"""
_GIT = re.compile(r"GIT_CONFIG_(COUNT|KEY_\d+|VALUE_\d+)")
"""git's settings, which it takes all or not at all; a value may be a header with a password"""
_CERTAIN = re.compile(
    r"(^|_)(api_?key|apikey|access_key|secret|secret_key|private_key|(access|auth|api|bearer)_token"
    r"|passwd|password|passphrase|credentials?|authorization|cookie)$"
)
_LIKELY = re.compile(r"(^|_)(token|key)$")
_SWITCH = re.compile(r"[\d.]{1,7}|(?i:true|false)")
_RANDOM = re.compile(r"(?=.*\d)[A-Za-z0-9_\-./+=]{16,}")
_TOKEN = re.compile(
    r"\b(gh[opsu]_|github_pat_|glpat-|hf_|sk-|xox[abp]-|npm_|pypi-)(?=[\w-]*\d)[\w-]{12,}"
    r"|\b(AKIA|ASIA)[A-Z0-9]{16}\b|\bAIza[A-Za-z0-9_-]{30,}|\beyJ[\w-]{8,}\.eyJ[\w-]{8,}"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY|(?i:\b(bearer|basic) )(?=\S*\d)[\w.+/=-]{8,}"
    r"|\bGOOG1[A-Z0-9]{20,}"
)
"""what well-known secrets begin with"""
_OPTIONS = ("options", "curriculum_options", "sglang", "engine_options", "env", "headers", "body")
"""settings below which a name tells what a text is"""


_IN_AN_ADDRESS = (
    "this address holds a secret, and a recipe is kept in records and model cards; leave it out of"
    " the address, and give it by the environment (AWS_..., AZURE_STORAGE_..., GOOGLE_...), which"
    " `tributary secret BLOCK NAME` keeps in the block that storage.credentials names"
)
_WORD = 8
"""characters of a secret, or of a part of one, that nothing else is"""
_STORE = "AWS_"
_SOURCES = ("HF_", "HUGGING_FACE_", "GOOGLE_", "AZURE_")
_SOURCE = re.compile(r"hf:|(?!https?://|file://)[a-z0-9]+://")
"""how the name of a model that lies elsewhere begins"""


def is_reference(text: str) -> bool:
    """Return whether a text is `secret:NAME`."""
    return _REFERENCE.fullmatch(text) is not None


def secret_names(value: Any) -> set[str]:
    """The secrets that a value of any depth refers to."""
    return {found[1] for _, text in texts(value) if (found := _REFERENCE.fullmatch(text))}


def secrets_of(value: Any) -> dict[str, str]:
    """The secrets that a value refers to, as far as this process has them."""
    return {name: os.environ[name] for name in secret_names(value) if name in os.environ}


def resolved(value: Any) -> Any:
    """The value with secrets in place of references. Raises InputError for one that is not set."""
    if isinstance(value, str) and (found := _REFERENCE.fullmatch(value)):
        if not (held := os.environ.get(found[1])):
            raise InputError(missing(found[1]))
        return held
    if isinstance(value, Mapping):
        items = cast("Mapping[Any, Any]", value).items()
        return {key: resolved(each) for key, each in items} if secret_names(value) else value
    if isinstance(value, list | tuple) and secret_names(value):
        return [resolved(each) for each in cast("list[Any]", value)]
    return value


def header_texts(headers: Mapping[str, str]) -> dict[str, str]:
    """Headers of a request with secrets in place of references. Raises InputError."""
    found = dict(cast("Mapping[str, str]", resolved(headers)))
    return {
        sendable(name, "a header's name"): sendable(text, headers[name], f"header {name}: ")
        for name, text in found.items()
    }


def missing(name: str) -> str:
    return (
        f"`secret:{name}` refers to {name}, which is not set here: export it and run"
        f" `tributary secret BLOCK {name}`, and name the block in storage.credentials; or export it"
        " before `tributary up`"
    )


def plain_address(url: str) -> str:
    """The address. Raises InputError for one that holds a secret: it would be printed and kept."""
    if holds_secret(url):
        raise InputError(
            f"{masked(url)}: an address may hold no secret; give it by the environment (AWS_...,"
            " AZURE_STORAGE_..., GOOGLE_...)"
        )
    return url


def without_variables(text: str, environment: Mapping[str, str]) -> str:
    """Return what a program wrote, with names in place of the secrets of its environment."""
    for name, held in environment.items():
        if len(held) >= _WORD and is_secret_variable(name, held):
            text = text.replace(held, f"${name}")
    return text


def without_secrets(text: str, options: Any) -> str:
    """Return a text that a part or a server wrote, with references in place of what they stand
    for."""
    for name in secret_names(options):
        held = os.environ.get(name, "")
        words = [word for word in held.split() if len(word) >= _WORD]  # also without `Bearer`
        for known in [held, *words] if held else []:
            text = text.replace(known, f"secret:{name}")
    return text


def written_secrets(settings: Any) -> Iterator[str]:
    """Yield what stands in settings and looks like a secret, each as `field.path: what to write`.
    No line holds any of it."""
    for at, text in texts(settings):
        if holds_secret(text) and not any(part in _OPTIONS for part in at[:-1]):
            yield f"{'.'.join(at)}: {_IN_AN_ADDRESS}"
            continue
        if "command" in at and "secret:" in text:
            yield f"{'.'.join(at)}: all users of a machine read command lines; give it by `env`"
            continue
        named = at[-1] if at and any(part in _OPTIONS for part in at[:-1]) else ""
        if text and not _REFERENCE.fullmatch(text) and _is_secret(named, text):
            name = re.sub(r"\W", "_", at[-1]).upper() if at else ""
            name = name if _VARIABLE.fullmatch(name) else "MY_TOKEN"
            yield (
                f"{'.'.join(at)}: looks like a secret, and a recipe is kept in records and model"
                f" cards; write `secret:{name}`, which stands for the environment variable {name}"
                f" (`tributary secret BLOCK {name}` keeps it in the block that storage.credentials"
                " names)"
            )


def is_secret_variable(name: str, text: str) -> bool:
    """Return whether an environment variable is a secret, by its name or by how its text begins. A
    proxy is none: without its password nothing would reach the network."""
    return not name.lower().endswith("_proxy") and _is_secret(name, text)


def _is_secret(name: str, text: str) -> bool:
    if _TOKEN.search(text) or holds_secret(text):
        return True
    if _VARIABLE.fullmatch(name):
        return _IN_VARIABLE.search(name) is not None and not _SWITCH.fullmatch(text)
    plain = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|-", "_", name).lower()
    likely = _LIKELY.search(plain) is not None and _RANDOM.fullmatch(text) is not None
    return likely or _CERTAIN.search(plain) is not None


def texts(value: Any, at: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    """The texts in a value of any depth, each with the names that lead to it."""
    if isinstance(value, str):
        yield at, value
    elif isinstance(value, Mapping):
        for key, each in cast("Mapping[Any, Any]", value).items():
            yield from texts(each, (*at, str(key)))
    elif isinstance(value, list | tuple):
        for index, each in enumerate(cast("list[Any]", value)):
            yield from texts(each, (*at, str(index)))


@dataclass(frozen=True, slots=True)
class RunSecrets:
    """The secrets that a run has, by the variables that hold them."""

    held: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    referred: frozenset[str] = frozenset()
    """those that options of the recipe refer to"""

    def needed_by(self, stage: Any) -> dict[str, str]:
        """Return what a stage's job needs; `stage` is what makes it up, as JSON values."""
        own, found = secret_names(stage), list(texts(stage))
        has_source = any(_SOURCE.match(text) for _, text in found)
        has_servers = any("external" in at for at, _ in found)

        def is_needed(name: str) -> bool:
            if name in own or name.startswith(_STORE):
                return True
            if name in self.referred:
                return False
            if name.startswith(_SOURCES):
                return has_source
            return has_servers if name == EXTERNAL_KEY_VARIABLE else True

        return {name: text for name, text in self.held.items() if is_needed(name)}


def is_for_jobs(name: str) -> bool:
    """Return whether jobs may need this secret of the environment, though no option refers to
    it."""
    return name.startswith((_STORE, *_SOURCES)) or name == EXTERNAL_KEY_VARIABLE


def with_secrets_of_the_store(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment with no other secret: for servers, and for what Ray starts."""
    return {
        name: text
        for name, text in environment.items()
        if name.startswith(_STORE) or not is_secret_variable(name, text)
    }


def environment_without_secrets(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment with no secret at all: for what neither reads the store nor runs stages."""
    kept = {n: text for n, text in environment.items() if not is_secret_variable(n, text)}
    return _with_settings_of_git(kept, environment)


def _with_settings_of_git(
    kept: Mapping[str, str], environment: Mapping[str, str]
) -> dict[str, str]:
    """Keep git's settings where none of their values looks like a secret: what is mounted from
    elsewhere is read only where one of them says that it may be."""
    settings = {name: text for name, text in environment.items() if _GIT.fullmatch(name)}
    others = {name: text for name, text in kept.items() if name not in settings}
    is_safe = not any(
        _is_secret("", text) or "authorization" in text.lower() for text in settings.values()
    )
    return others | settings if is_safe else others


def ask_program(
    command: Sequence[str], seconds: float, folder: str | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a program for what it prints; it gets no secret, for it may run what others have
    configured, as `git` does. Raises OSError and subprocess.TimeoutExpired."""
    return subprocess.run(
        command, cwd=folder, env=environment_without_secrets(os.environ), capture_output=True,
        text=True, errors="replace", timeout=seconds, check=False,
    )  # fmt: skip


def for_part(environment: Mapping[str, str], options: Any) -> dict[str, str]:
    """The environment of a user's part: of what is ours to use, only what its options refer to."""
    named = secret_names(options)
    return {
        name: text
        for name, text in environment.items()
        if name in named
        or not (name.startswith(_STORE) or name == EXTERNAL_KEY_VARIABLE)
        or not is_secret_variable(name, text)
    }
