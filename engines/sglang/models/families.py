"""SGLang's class of each family that this host serves, under the name that its hook looks for."""

from __future__ import annotations

from pkgutil import resolve_name
from typing import Any

from engines.families.common.registry import served_families

EntryClass: list[Any] = [resolve_name(family.sglang) for family in served_families().values()]
