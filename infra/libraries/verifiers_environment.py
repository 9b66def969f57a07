"""An environment of the library verifiers: it asks an OpenAI client, and its rubric scores."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from infra.errors import InputError
from infra.libraries.library import Outcome, Row, cause_of, imported, outcome_of

MODEL = "policy"
_VERSIONS = "verifiers>=0.1.12,<0.4"


class VerifiersEnvironment:
    """What `load_environment` of the module `name` gives."""

    def __init__(self, name: str, arguments: Mapping[str, Any]) -> None:
        library: Any = imported("verifiers", "verifiers")
        imported("datasets", "datasets").disable_progress_bars()
        try:
            load = imported("verifiers", "verifiers.utils.env_utils").load_environment
        except (InputError, AttributeError) as error:
            version = getattr(library, "__version__", "of another version")
            raise InputError(
                f"verifiers {version} cannot load environments: {error}; what runs here is"
                f" `load_environment` of {_VERSIONS}"
            ) from error
        try:
            self._environment: Any = load(name, **arguments)
        except Exception as error:  # whatever an environment's own code raises
            raise InputError(f"environment {name!r}: {cause_of(error)}") from error
        if getattr(self._environment, "requires_group_rollouts", False):
            raise InputError(
                "its rubric compares the rollouts of a group with each other; each rollout is"
                " scored by itself here"
            )

    def rows(self) -> Sequence[Row]:
        """Return the rows. Those of `eval_dataset` are held out; where there is none, nobody
        says."""
        environment = self._environment
        training, held_out = _built(environment, ""), _built(environment, "eval_")
        said = None if held_out is None else False
        rows = [_row(each, said) for each in training or ()]
        return rows + [_row(each, True) for each in held_out or ()]

    async def rollout(self, content: dict[str, Any], url: str, key: str, seconds: float) -> Outcome:
        """Run the environment's own rollout and score; an exception of a reward counts as 0, as
        verifiers has it."""
        client = self._openai.with_options(base_url=f"{url}/v1", api_key=key, timeout=seconds)
        asking = imported("verifiers", "verifiers.clients").OpenAIChatCompletionsClient(client)
        try:
            async with asyncio.timeout(seconds):
                made: Any = await self._environment.run_rollout(dict(content), asking, MODEL, {})
        except TimeoutError:
            return Outcome(is_late=True)
        parts = {name: float(value) for name, value in (made.get("metrics") or {}).items()}
        error = made.get("error")
        score = float(made.get("reward") or 0.0)
        return outcome_of(score, parts, error=_said(error) if error else "")

    @cached_property
    def _openai(self) -> Any:
        """Return the client. Its connections are shared by all rollouts."""
        made: Any = imported("openai", "openai")
        return made.AsyncOpenAI(base_url="http://127.0.0.1/v1", api_key="none", max_retries=0)


def _built(environment: Any, which: str) -> Any:
    """One of its two data sets; None where it has none."""
    build = getattr(environment, f"build_{which}dataset", None)
    return build() if build is not None else getattr(environment, f"{which}dataset", None)


def _row(content: Mapping[str, Any], is_held_out: bool | None) -> Row:
    prompt: Any = content["prompt"]
    asked = [("user", prompt)] if isinstance(prompt, str) else [_message(m) for m in prompt]
    return Row(asked, is_held_out, dict(content))


def _message(message: Mapping[str, Any]) -> tuple[str, str]:
    """Raises InputError for what is no text."""
    content: Any = message.get("content") or ""
    if isinstance(content, str):
        return str(message["role"]), content
    for part in content:
        if part.get("type") not in ("text", "input_text"):
            raise InputError(
                f"a prompt has a part of type {part.get('type')!r}: the policy reads text only"
            )
    return str(message["role"]), "".join(part.get("text") or "" for part in content)


def _said(error: Any) -> str:
    """Return what verifiers keeps of an error."""
    if isinstance(error, Mapping):
        chain = error.get("error_chain_repr") or error.get("error_chain_str")
        return str(chain or error.get("error") or dict(error))
    return f"{type(error).__name__}: {error}" if isinstance(error, Exception) else str(error)
