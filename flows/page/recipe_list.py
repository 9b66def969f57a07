"""The forms of a running Prefect server, and their list of recipes. Imports no Prefect."""

from __future__ import annotations

from typing import Any

from flows.catalog import FLOWS
from flows.load import recipe_names
from flows.running.prefect_api import PrefectApi

BY_NAME = "by name"
"""title of the list in a form's schema"""


def renew_lists(api: PrefectApi) -> int:
    """Let every form offer the recipes that have a name now; the number of forms that changed.

    Raises InfrastructureError.
    """
    names, changed = recipe_names(), 0
    for flow in FLOWS:
        deployment: dict[str, Any] = api.call("GET", f"/deployments/name/{flow}/{flow}", unknown={})
        schema = deployment.get("parameter_openapi_schema") or {}
        choices = schema.get("properties", {}).get("recipe", {}).get("anyOf", [])
        listed = [choice for choice in choices if choice.get("title") == BY_NAME]
        if any(choice["enum"] != names for choice in listed):
            for choice in listed:
                choice["enum"] = names
            api.call(
                "PATCH", f"/deployments/{deployment['id']}", {"parameter_openapi_schema": schema}
            )
            changed += 1
    return changed


def form_url(api: PrefectApi, ui: str, flow: str) -> str:
    """Where a person fills a flow's form in; empty where it is not deployed."""
    deployment: dict[str, Any] = api.call("GET", f"/deployments/name/{flow}/{flow}", unknown={})
    return f"{ui}/deployments/deployment/{deployment['id']}/run" if deployment else ""
