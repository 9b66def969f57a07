"""`tributary notify`: a webhook that hears of runs that fail."""

from __future__ import annotations

from flows.command.output import CommandConsole
from flows.page.notify import is_notifying, notify_at, stop_notifying
from flows.running.open import running_stack
from flows.running.prefect_api import PrefectApi


def show_notify(url: str, off: bool, console: CommandConsole) -> int:
    api = PrefectApi(running_stack().prefect_api)
    if off:
        text = "nobody is told any more." if stop_notifying(api) else "nobody was told before."
    elif url:
        notify_at(api, url)
        text = "a run that fails or crashes calls the webhook from now on; it was called once now."
    elif is_notifying(api):
        text = "a webhook is told of runs that fail; end it with: tributary notify --off"
    else:
        text = "nobody is told of runs that fail; begin with: tributary notify URL"
    console.say(text)
    return 0
