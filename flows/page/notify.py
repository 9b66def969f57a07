"""Telling someone of a run that failed or crashed: a webhook that Prefect's server calls.

The server calls it, and not the flow: a flow that crashed says nothing. The address may hold a
secret, so it is kept in a Webhook block, encrypted; the payload is read by Slack and Mattermost
(`text`), Discord (`content`), and by whatever reads JSON.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

import httpx

from flows.running.prefect_api import PrefectApi
from infra.errors import InputError
from infra.processes.network import goes_by_proxies

BLOCK = "tributary-notify"
AUTOMATION = "tributary: tell of failures"
EVENTS = ("Failed", "Crashed", "TimedOut")
TRY_SECONDS = 10.0
_TEXT = (
    "'Tributary: ' ~ flow_run.name ~ ': ' ~ flow_run.state.name ~ '. '"
    " ~ (flow_run.state.message or '')[:500] ~ ' ' ~ ((flow_run | ui_url) or '')"
)
# A message may quote what a model or a row says, and is to call nobody: Slack reads `<!channel>`,
# Mattermost `@channel`; Discord obeys `allowed_mentions`.
_QUIET = "replace('&', '&amp;') | replace('<', '&lt;') | replace('@', '@\u200b') | tojson"
_PAYLOAD = (
    f'{{"text": {{{{ ({_TEXT}) | {_QUIET} }}}}, "content": {{{{ ({_TEXT}) | tojson }}}},'
    ' "allowed_mentions": {"parse": []}}'
)


def notify_at(api: PrefectApi, url: str) -> None:
    """Let a failed or crashed run call `url` from now on, which is called once to try it.

    Raises InputError for an address that does not take it.
    """
    _try(url)
    block = _put_block(api, url)
    wanted = automation(block)
    found = _automations(api)
    if found:
        api.call("PUT", f"/automations/{found[0]['id']}", wanted)
    else:
        api.call("POST", "/automations/", wanted)


def stop_notifying(api: PrefectApi) -> bool:
    """Return whether there was something to stop."""
    found = _automations(api)
    for one in found:
        api.call("DELETE", f"/automations/{one['id']}")
    known = api.call("GET", _block_path(), unknown={})
    if known:
        api.call("DELETE", f"/block_documents/{known['id']}")
    return bool(found)


def is_notifying(api: PrefectApi) -> bool:
    return any(one["enabled"] for one in _automations(api))


def automation(block: str) -> dict[str, Any]:
    """Write the automation as Prefect's API takes it."""
    return {
        "name": AUTOMATION,
        "description": "Calls a webhook when a run fails. `tributary notify` creates it.",
        "enabled": True,
        "trigger": {
            "type": "event",
            "posture": "Reactive",
            "match": {"prefect.resource.id": "prefect.flow-run.*"},
            "for_each": ["prefect.resource.id"],
            "expect": [f"prefect.flow-run.{name}" for name in EVENTS],
            "threshold": 1,
            "within": 0,
        },
        "actions": [{"type": "call-webhook", "block_document_id": block, "payload": _PAYLOAD}],
    }


def _try(url: str) -> None:
    if urlsplit(url).scheme not in ("http", "https"):
        raise InputError(
            f"notify: `{url}` is no address of a webhook; give http://... or https://..."
        )
    said = "Tributary tells here of runs that fail or crash."
    try:
        reply = httpx.post(
            url, json={"text": said, "content": said}, timeout=TRY_SECONDS,
            trust_env=goes_by_proxies(url),
        )  # fmt: skip
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise InputError(
            f"notify: the webhook does not answer ({type(error).__name__}: {error}); check the"
            " address"
        ) from None
    if reply.is_error:
        raise InputError(
            f"notify: the webhook answered {reply.status_code}: {reply.text[:200]}; check the"
            " address"
        )


def _put_block(api: PrefectApi, url: str) -> str:
    """The block's id."""
    data = {"url": url, "method": "POST", "headers": {"Content-Type": "application/json"}}
    known = api.call("GET", _block_path(), unknown={})
    if known:
        api.call("PATCH", f"/block_documents/{known['id']}", {"data": data})
        return str(known["id"])
    block_type = api.call("GET", "/block_types/slug/webhook")["id"]
    kinds = {"block_schemas": {"block_type_id": {"any_": [block_type]}}}
    schema = api.call("POST", "/block_schemas/filter", kinds)[0]["id"]
    made = api.call(
        "POST",
        "/block_documents/",
        {"name": BLOCK, "block_type_id": block_type, "block_schema_id": schema, "data": data},
    )
    return str(made["id"])


def _block_path() -> str:
    return f"/block_types/slug/webhook/block_documents/name/{BLOCK}"


def _automations(api: PrefectApi) -> list[dict[str, Any]]:
    return api.call(
        "POST", "/automations/filter", {"automations": {"name": {"any_": [AUTOMATION]}}}
    )
