"""A chat template is a program: one that never ends, or fills the memory, is refused."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import pytest

from engines.chat import template_bounds, template_sizes
from engines.chat.chat import Chat
from engines.chat.template import ChatTemplate
from engines.types import Message
from infra.errors import InputError
from tests.parts.chat_parts import chat_folder

pytestmark = pytest.mark.unit

USER_AND_ANSWER = [Message("user", "a"), Message("assistant", "b")]
X = "{% set x = 'x' * 9999999 %}"
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
        ("{{ 'x' | center(10 ** 9) }}", "the number"),
        ("{{ 'x' | center(1000000000) }}", "the number"),
        ("{{ 'x' | center(width=1000000000) }}", "the number"),
        ("{{ 'x' | indent(1000000000, true) }}", "the number"),
        ("{{ {} | tojson(indent=1000000000) }}", "the number"),
        ("{{ ('x\n' * 999999) | indent(999999) }}", "text or a list"),
        ("{{ ('x' * 999999) | replace('x', 'x' * 999999) }}", "text or a list"),
        ("{{ ('x' * 999999).replace('x', 'x' * 999999) }}", "text or a list"),
        ("{{ ('\t' * 999999).expandtabs(999999) }}", "text or a list"),
        ("{{ '%999999999d' % 1 }}", "text or a list"),
        ("{{ '%*d' % (999999999, 1) }}", "width that it computes"),
        ("{{ '%999999999d' | format(1) }}", "text or a list"),
        ("{{ '{:>999999999}'.format(1) }}", "text or a list"),
        ("{{ ('{0}' * 999999).format('x' * 999999) }}", "text or a list"),
        ("{{ (['x' * 999999] * 99999) | join }}", "text or a list"),
        ("{{ ('x' * 999999).join(['x'] * 999999) }}", "text or a list"),
        ("{{ range(99999) | map('center', 999999) | list | length }}", "texts and lists"),
        ("{{ range(99999) | map('string') | map('center', 999999) | join }}", "texts and lists"),
        ("{{ range(99999) | map('string') | map('center', 999999) | sort | first }}", "texts and"),
        ("{% for a in range(99999) %}{% set x = 'x' * 9999999 %}{% endfor %}", "texts and"),
        ("{{ 'x'" + " ~ 'x'" * 200 + " }}", "joins more"),
        ("{% macro f(x) %}{{ f(x + x) }}{% endmacro %}{{ f('x' * 9999) }}", "text or a list"),
        ("{{ [['x' * 9999] * 999] * 999 }}", "text or a list"),
        ("{% set x = 'x' * 999999 %}{% set ns = namespace(x=[]) %}{% for a in range(9999) %}"
         "{% set ns.x = [ns.x, x[a:]] %}{% endfor %}", "text"),
        ("{% set x = ' ' ~ 'x' * 999999 %}{% set ns = namespace(x=[]) %}"
         "{% for a in range(9999) %}{% set ns.x = ns.x + [x.strip()] %}{% endfor %}", "text"),
        ("{{ lipsum(n=999999, max=999999) }}", "lipsum"),
        *((f"{{{{ 'x' | {name} }}}}", f"'{name}'")
          for name in ("pprint", "random", "striptags", "urlize", "wordwrap", "xmlattr")),
        ("{{ ('x' * 99).encode('punycode') | length }}", "encodes a text"),
        ("{{ ([[1] * 9] * 9999) | sum(start=[]) | length }}", "texts and lists"),
        ("{{ range(1000000000) | list }}", "the number"),
        ("{% set ns = namespace(n=9) %}{% for a in range(99) %}{% set ns.n = ns.n * ns.n %}"
         "{% endfor %}", "numbers of more than"),
        ("{% set x = 'x' * 99999 %}{% for a in range(999) %}{{ x }}{% endfor %}", "text or a list"),
        ("{{ ([{('x' * 999999): 1}] * 9999) | tojson }}", "text or a list"),
        ("{% set d = {'a': 'x' * 999999} %}{{ ([d.items()] * 9999) | string }}", "text or a list"),
        ("{{ ('{0}' * 9999).format(['x' * 999999]) }}", "text or a list"),
        ("{{ '%(a)s' * 9999 % {'a': 'x' * 999999} }}", "text or a list"),
        ("{{ ('{a}' * 9999).format_map({'a': 'x' * 999999}) }}", "text or a list"),
        *((f"{{{{ '{text}'.format(1, {given}) }}}}", "width that it computes")
          for text, given in (("{:{}}", "'999999999'"), ("{:{1[0]}}", "[9]"), ("{1[0]}", "['x']"))),
        ("{{ '%*d' % (-999999999, 1) }}", "width that it computes"),
        ("{{ ([namespace()] * 9999) | sort(attribute='a.' * 9999) }}", "'sort' more than 256"),
        ("{{ (('f' * 9999999) | int(0, 16)) // 3 }}", "too long"),
        ("{{ (9 ** 64) ** 64 > 1 }}", "numbers of more than"),
        ("{{ (1).to_bytes(1048576, 'big') * 99999 }}", "of a number"),
        ("{{ (1).from_bytes([255] * 9999, 'big') > 1 }}", "of a number"),
        ("{{ ('<!---->' | safe).striptags() }}", "strips tags"),
        ("{{ ('\\x00' * 99999).translate(['x' * 99999]) }}", "text or a list"),
        *((f"{{{{ ('xy ' * 5000000){what} }}}}", "text or a list")
          for what in (".split()", ".split(' ')", "| list", "| sort", "| title", "| wordcount")),
        ("{{ ('xy\n' * 5000000).splitlines() }}", "text or a list"),
        *((f"{{{{ {joined} }}}}", "text or a list") for joined in (
            "('x' * 99999).join(range(999) | map('string'))", "('x' * 99999).join('y' * 99999)",
            "('y' * 99999) | join('x' * 99999)", "range(9999) | join('x' * 99999)")),
        ("{{ [0] | tojson(indent='x' * 99) }}", "indents JSON"),
        ("{{ [0] | tojson(separators=('x' * 99, ':')) }}", "separators"),
        *((X + body, "text or a list") for body in (
            "{% macro f() %}{{ x }}{{ x }}{% endmacro %}{% set y = f() %}",
            "{% set y %}{{ x }}{{ x }}{% endset %}",
            "{% filter length %}{{ x }}{{ x }}{% endfilter %}")),
        (X + "{% for a in x if false %}{% endfor %}", "turns of loops"),
        *((f"{{{{ ('a' * 99999).{seek}('b' ~ 'a' * 9999) }}}}", f"'{seek}' more than 256")
          for seek in ("rfind", "rsplit", "rpartition", "strip")),
        ("{{ strftime_now('%200Y' * 999999) }}", "'strftime' more than 256"),
        ("{{ raise_exception('x' * 9999999) }}", r"x{999} \.\.\.$"),
        ("{{ " + "9" * 5000 + " }}", "digits"),
        ("{% for a in [1] %}" * 25 + "{% endfor %}" * 25, "nested blocks"),
    ],
)  # fmt: skip
def test_what_would_not_end_or_not_fit_is_refused(
    text: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(template_bounds, "MOST_STEPS", 200_000)
    monkeypatch.setattr(template_bounds, "MOST_MADE", 64 << 20)
    with pytest.raises(InputError, match=rf"chat template (cannot render|does not comp).*{told}"):
        ChatTemplate(text, "chat_template.jinja", {}).render([Message("user", "hello")])


@pytest.mark.parametrize(
    ("body", "written"),
    [("[ns.x, ns.x]", ""), ("{'a': ns.x, 'b': ns.x}", ""), ("(ns.x, ns.x)", " | tojson")],
)
def test_what_holds_the_same_twice_counts_twice(
    body: str, written: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(template_sizes, "LARGEST", 1 << 18)
    text = DOUBLES.replace("BODY", body) + f"{{{{ ns.x{written} }}}}"
    with pytest.raises(InputError, match="text or a list of more than 262144"):
        ChatTemplate(text, "t", {}).render([Message("user", "hello")])


@pytest.mark.parametrize(
    "text", ["{% if 1 %}" * 3000, "{{ " + "(" * 5000, "{{ " + "not " * 9000, "{{ " + "[" * 5000]
)
def test_what_is_nested_too_deeply_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="nested too deeply"):
        ChatTemplate(text, "t", {})


def test_what_takes_long_in_few_turns_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_bounds, "MOST_SECONDS", 0.05)
    turns = "{% set x = 'x' * 999999 %}{% for a in range(99999) %}{{ '' if 'yx' in x }}{% endfor %}"
    calls = "{% set x = 'a ' * 500000 %}" + "{% set y = x | wordcount %}" * 9
    one_by_one = [
        "{% set x = 'x' * 999999 %}" + "{% if 'yx' in x %}{% endif %}" * 400,
        "{% set x = 'x' * 999999 %}{% for a in range(99999) if 'yx' in x %}{% endfor %}",
        "{{ range(99999) | select('in', [0.5] * 99999) | list }}",
    ]
    for text in (turns, calls, *one_by_one):
        with pytest.raises(InputError, match="s of a processor"):
            ChatTemplate(text, "t", {}).render([Message("user", "hello")])


def test_a_template_that_breaks_a_bound_is_not_asked_again_in_other_ways(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There are five before the first conversation: forms of calls, then ways to think."""
    monkeypatch.setattr(template_bounds, "MOST_STEPS", 20_000)
    turns: list[int] = []
    counted = template_bounds.step
    monkeypatch.setattr(template_bounds, "step", lambda n: (turns.append(n), counted(n)))
    with pytest.raises(InputError, match="turns of loops"):
        Chat.load(chat_folder(tmp_path, LOOPS, ["<|im_end|>"], "<|im_end|>"))
    assert sum(turns) < 1.1 * 20_000


def test_renderings_together_have_the_time_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_bounds, "MOST_SECONDS", 0.1)
    text = "{% set x = 'x' * 999999 %}{% for a in range(20) %}{{ '' if 'yx' in x }}{% endfor %}"
    made = ChatTemplate(text, "t", {})
    began = time.thread_time()
    with template_bounds.together():
        for _ in range(200):
            with contextlib.suppress(InputError):
                made.render([Message("user", "hello")])
        with pytest.raises(InputError, match="s of a processor"):
            made.render([Message("user", "hello")])
    assert time.thread_time() - began < 1
    made.render([Message("user", "hello")])


def test_a_template_larger_than_any_that_a_model_has_is_not_compiled() -> None:
    with pytest.raises(InputError, match="more than 262144 characters"):
        ChatTemplate("{{ x }}" * 99999, "t", {})


def test_loops_keep_what_templates_ask_of_them() -> None:
    text = (
        "{% for m in messages %}{{ loop.index }}/{{ loop.length }} {{ m.role ~ ':' }}"
        "{% if loop.last %}.{% endif %}{% else %}none{% endfor %}"
        "{% for m in messages | selectattr('role', 'eq', 'user') %}{{ loop.first }}{% endfor %}"
    )
    said = ChatTemplate(text, "t", {}).render(USER_AND_ANSWER)
    assert said == "1/2 user:2/2 assistant:.True"
