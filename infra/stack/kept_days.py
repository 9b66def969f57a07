"""How long Prefect and MLflow keep the details of runs that have ended."""

from __future__ import annotations

import os

from infra.errors import InputError

VARIABLE = "TRIBUTARY_KEEP_DAYS"
DEFAULT = 90
DAY_S = 86_400


def kept_days() -> int:
    """Raises InputError for what is no number of days."""
    text = os.environ.get(VARIABLE, "") or str(DEFAULT)
    if not text.isdecimal() or not 1 <= int(text) <= 36_500:
        raise InputError(f"{VARIABLE}={text}: give a number of days, e.g. {DEFAULT}")
    return int(text)
