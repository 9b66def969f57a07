"""SGLang's class of each family, under the name that its hook looks for."""

from __future__ import annotations

from pkgutil import resolve_name
from typing import Any

from engines.families.common.registry import all_families

EntryClass: list[Any] = [resolve_name(family.sglang) for family in all_families().values()]
