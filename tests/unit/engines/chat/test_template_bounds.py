"""A chat template is a program: one that never ends, or fills the memory, is refused."""

from __future__ import annotations

import pytest

from engines.chat.template import ChatTemplate
from engines.types import Message
from infra.errors import InputError

pytestmark = pytest.mark.unit

USER_AND_ANSWER = [Message("user", "a"), Message("assistant", "b")]
LOOPS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
BRANCHES = "{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(40) }}"
DOUBLES = "{% set ns = namespace(x='x') %}{% for a in range(60) %}{% set ns.x = BODY %}{% endfor %}"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (LOOPS, "turns of loops"),
        (BRANCHES, "turns of loops"),
        *((DOUBLES.replace("BODY", body), "text or a list")
          for body in ("ns.x * 2", "ns.x + ns.x", "ns.x ~ ns.x", "ns.x.replace('x', 'xx')")),
        ("{{ 'x' * 999999999999 }}", "text or a list"),
        ("{{ 9 ** 99999999 > 1 }}", "power"),
        ("{{ 'x'.ljust(999999999) }}", "the number"),
        ("{% set x = 'x' * 99999 %}{% for a in range(999) %}{{ x }}{% endfor %}", "text or a list"),
    ],
)  # fmt: skip
def test_what_would_not_end_or_not_fit_is_refused(text: str, told: str) -> None:
    template = ChatTemplate(text, "chat_template.jinja", {})
    with pytest.raises(InputError, match=f"cannot render.*{told}"):
        template.render([Message("user", "hello")])


def test_loops_keep_what_templates_ask_of_them() -> None:
    text = (
        "{% for m in messages %}{{ loop.index }}/{{ loop.length }} {{ m.role ~ ':' }}"
        "{% if loop.last %}.{% endif %}{% else %}none{% endfor %}"
        "{% for m in messages | selectattr('role', 'eq', 'user') %}{{ loop.first }}{% endfor %}"
    )
    said = ChatTemplate(text, "t", {}).render(USER_AND_ANSWER)
    assert said == "1/2 user:2/2 assistant:.True"
