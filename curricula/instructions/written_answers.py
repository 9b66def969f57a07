"""Answers made of plain English sentences: what instructions are read off."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from engines.types import Json

Rule = tuple[str, dict[str, Json]]
"""an instruction in words, and the constraint that checks it"""

TOPICS = (
    "bread",
    "rivers",
    "gardens",
    "winter",
    "music",
    "bridges",
    "tea",
    "maps",
    "bees",
    "trains",
    "paper",
    "mountains",
    "clocks",
    "soup",
    "rain",
    "libraries",
    "boats",
    "kites",
    "markets",
    "stars",
    "windows",
    "forests",
    "letters",
    "bicycles",
    "gloves",
    "lamps",
    "islands",
    "songs",
    "stairs",
    "wool",
    "apples",
    "chairs",
)
NAMES = ("Ann", "Ben", "Clara", "David", "Emma", "Felix", "Greta", "Hugo")
_PLURAL = re.compile(r"s\b")
_SENTENCES = (
    "{Topic} can change a whole day.",
    "Many people think of {topic} when they are tired.",
    "My neighbour talks about {topic} every morning.",
    "Some of the best stories begin with {topic}.",
    "Nobody in the village ever forgot {topic}.",
    "Old books describe {topic} with great care.",
    "Children learn about {topic} before they can read.",
    "We often look for {topic} in the wrong place.",
    "A quiet room is a good place to think about {topic}.",
    "Good {topic} need patience and a little luck.",
    "You should never laugh about {topic}.",
    "Without {topic} the town would be empty.",
    "Simple things like {topic} bring friends together.",
    "I once wrote a long poem about {topic}.",
    "The history of {topic} is older than most cities.",
    "Careful hands are needed for {topic}.",
)
_ORNAMENTS = (
    "What would the world be without {topic}?",
    "How strange that sounds!",
    "There are {number} reasons for that.",
    "The old master (a friend of mine) agreed.",
    'She only said "that is enough" and left.',
    "It was a well-known fact; everybody smiled.",
    "That was in {year}.",
    "Nearly {percent}% of them said yes.",
    "Who knows... perhaps it is true.",
    "In short, THIS matters.",
)
ADJECTIVES = (
    "small",
    "bright",
    "quiet",
    "old",
    "green",
    "heavy",
    "narrow",
    "soft",
    "early",
    "round",
)


def counted(number: int, things: str) -> str:
    """Example: counted(1, "words in bold") -> "1 word in bold"."""
    return f"{number} {_PLURAL.sub('', things, count=1) if number == 1 else things}"


@dataclass(frozen=True, slots=True)
class Answer:
    """A right answer, with what is true of it by the way it was made."""

    text: str
    form: str
    asked: str
    """what the request asks for, e.g. `a letter to Ann`"""
    rules: tuple[Rule, ...] = ()
    """what its form is, as instructions: without them nobody would write it so"""
    is_prose: bool = False


Form = Callable[[str, random.Random], Answer]
"""a right answer about a topic"""


def sentences(topic: str, rng: random.Random, count: int) -> list[str]:
    """So many different sentences about the topic, in some of which something stands out."""
    plain = rng.sample(_SENTENCES, min(count, len(_SENTENCES)))
    chosen = [
        rng.choice(_ORNAMENTS) if i and rng.random() < 0.25 else s for i, s in enumerate(plain)
    ]
    numbers = {"number": rng.randint(2, 40), "year": rng.randint(1800, 1999)}
    numbers["percent"] = rng.randint(11, 89)
    return [
        s.format(topic=topic, Topic=topic.capitalize(), **numbers) for s in dict.fromkeys(chosen)
    ]


def _prose(topic: str, rng: random.Random) -> Answer:
    parts = [" ".join(sentences(topic, rng, rng.randint(1, 4))) for _ in range(rng.randint(1, 3))]
    text = "\n\n".join(parts)
    style = rng.choice((str, str, str, str.lower, str.upper))
    rule: Rule = (f"Use the word {topic}.", {"kind": "keyword", "word": topic})
    return Answer(style(text), "prose", "a short text", (rule,), is_prose=True)


def _in_quotation_marks(topic: str, rng: random.Random) -> Answer:
    text = " ".join(rng.sample(_SENTENCES[:6], 2)).format(topic=topic, Topic=topic.capitalize())
    rule: Rule = (
        "Put your whole answer in double quotation marks.",
        {"kind": "in_quotation_marks"},
    )
    return Answer(f'"{text}"', "quotation", "two sentences", (rule,))


def _letter(topic: str, rng: random.Random) -> Answer:
    to, by = rng.sample(NAMES, 2)
    body, after = " ".join(sentences(topic, rng, 3)), sentences(topic, rng, 1)[0]
    rules: list[Rule] = [
        (f"Let the first line be `Dear {to},` or `Hello {to},`.", {"kind": "greeting", "name": to}),
    ]
    text = f"{rng.choice(('Dear', 'Hello'))} {to},\n\n{body}"
    if rng.random() < 0.5:
        text += f"\n\nP.S. {after}"
        rules.append(("End with a postscript that begins with P.S.", {"kind": "postscript"}))
    else:
        text += f"\n\n{by}"
        rules.append((f"Sign with {by} alone in the last line.", {"kind": "signature", "name": by}))
    return Answer(text, "letter", f"a letter to {to}", tuple(rules))


def _bullets(topic: str, rng: random.Random) -> Answer:
    count = rng.randint(2, 5)
    lines = [f"- {a} {topic}" for a in rng.sample(ADJECTIVES, count)]
    rules: list[Rule] = [
        (
            f"Answer with a list of exactly {count} items and nothing else; begin each with `- `.",
            {"kind": "bullet_list", "count": count},
        ),
    ]
    if rng.random() < 0.3:
        lines = [f"- [{rng.choice(' x')}] {line[2:]}" for line in lines]
        rules = [
            (
                f"Answer with {count} items to tick off, as in Markdown: `- [ ] item`.",
                {"kind": "checkbox_count", "exactly": count},
            )
        ]
    elif rng.random() < 0.3:
        lines = [lines[0], *(f"  {line}" for line in lines[1:])]
        rules = [
            (
                "Write a list in which at least one item stands below another, further right.",
                {"kind": "nested_bullets"},
            )
        ]
    return Answer("\n".join(lines), "list", "a list", tuple(rules))


def _steps(topic: str, rng: random.Random) -> Answer:
    count = rng.randint(2, 4)
    said = [s[:-1] for s in sentences(topic, rng, count)]
    count = len(said)
    if rng.random() < 0.5:
        lines = [f"{i}. {s}" for i, s in enumerate(said, 1)]
        rule: Rule = (
            f"Number your {count} points 1., 2. and so on, each on a line of its own.",
            {"kind": "numbered_count", "exactly": count},
        )
    else:
        lines = [f"Step {i}: {s}" for i, s in enumerate(said, 1)]
        rule = (
            f"Give exactly {count} steps, each on a line that begins with `Step 1:` and so on.",
            {"kind": "numbered_steps", "exactly": count},
        )
    return Answer("\n".join(lines), "steps", "instructions", (rule,))


def _dialogue(topic: str, rng: random.Random) -> Answer:
    names: list[Json] = list(rng.sample(NAMES, 2))
    said = sentences(topic, rng, rng.randint(2, 4))
    text = "\n".join(f"{names[i % 2]}: {s}" for i, s in enumerate(said))
    if len(said) < 2:
        return _dialogue(topic, rng)
    rule: Rule = (
        f"Write it as {len(said)} lines in which {names[0]} and {names[1]} take turns:"
        " the name, a colon, what is said.",
        {"kind": "dialogue", "names": names, "lines": len(said)},
    )
    return Answer(text, "dialogue", "a talk", (rule,))


def _parts(topic: str, rng: random.Random) -> Answer:
    first, second, third = (sentences(topic, rng, 2)[0] for _ in range(3))
    if first != second and rng.random() < 0.4:
        rule: Rule = (
            "Give two different answers, with a line of six asterisks between them.",
            {"kind": "two_answers"},
        )
        return Answer(f"{first}\n******\n{second}", "parts", "an answer", (rule,))
    if rng.random() < 0.5:
        rule = (
            "Divide your answer into exactly 3 parts, with a line of three asterisks between.",
            {"kind": "parts_between_rules", "exactly": 3, "mark": "***"},
        )
        return Answer(f"{first}\n***\n{second}\n***\n{third}", "parts", "an answer", (rule,))
    word = rng.choice(("Part", "Section", "Chapter"))
    rule = (
        f"Write 2 parts; begin them with `{word} 1` and `{word} 2`.",
        {"kind": "sections", "word": word, "exactly": 2},
    )
    return Answer(f"{word} 1\n{first}\n\n{word} 2\n{second}", "parts", "an answer", (rule,))


def _wrapped(topic: str, rng: random.Random) -> Answer:
    tag = rng.choice(("answer", "note", "text"))
    rule: Rule = (
        f"Put the whole answer between <{tag}> and </{tag}>.",
        {"kind": "wrapped_in_tag", "tag": tag},
    )
    said = " ".join(sentences(topic, rng, 2))
    return Answer(f"<{tag}>{said}</{tag}>", "wrapped", "an answer", (rule,))


_FACTS: Sequence[tuple[str, dict[str, Json], str]] = (
    (
        "Name a date as 2026-03-01 is written.",
        {"kind": "iso_dates", "at_least": 1},
        "It began on {year}-0{d}-1{d}.",
    ),
    (
        "Name a time of day as 14:05 is written.",
        {"kind": "clock_times", "at_least": 1},
        "We met at 1{d}:3{d}.",
    ),
    (
        "Give an address of a web page.",
        {"kind": "urls", "at_least": 1},
        "More is at https://example.org/{topic}.",
    ),
    (
        "Give an address of mail.",
        {"kind": "emails", "at_least": 1},
        "Write to {topic}@example.org.",
    ),
    ("Add a hashtag.", {"kind": "hashtags", "at_least": 1}, "I call it #{topic}."),
    (
        "Speak to somebody by a name that begins with @.",
        {"kind": "mentions", "at_least": 1},
        "Thank you, @{topic}fan.",
    ),
    (
        "Give a price in euros with the sign of the currency.",
        {"kind": "amounts", "currency": "€", "at_least": 1},
        "It costs {d}0 €.",
    ),
    (
        "Name a distance in km.",
        {"kind": "measures", "unit": "km", "at_least": 1},
        "It is {d} km away.",
    ),
    (
        "Name a colour as #1e90ff is written.",
        {"kind": "hex_colours", "at_least": 1},
        "Paint it #1e{d}0ff.",
    ),
    (
        "Name a version such as v1.4.2.",
        {"kind": "version_numbers", "at_least": 1},
        "Use v1.{d}.2 of the plan.",
    ),
    (
        "Use a Roman numeral of two letters or more.",
        {"kind": "roman_numerals", "at_least": 1},
        "See chapter XI{i}.",
    ),
    (
        "Add a right equation such as 2 + 3 = 5.",
        {"kind": "right_equations", "at_least": 1},
        "Remember that {d} + 2 = {e}.",
    ),
    (
        "Leave a placeholder in square brackets.",
        {"kind": "placeholders", "at_least": 1},
        "Send it to [address].",
    ),
    ("Use an emoji.", {"kind": "emojis", "at_least": 1}, "That is good 🎉."),
    ("Use three dots once.", {"kind": "ellipses", "exactly": 1}, "Well... it is so."),
    (
        "Use a word that is short for two, as don't is.",
        {"kind": "contractions", "at_least": 1},
        "I don't mind.",
    ),
    (
        "Use a word with an accent.",
        {"kind": "accented_letters", "at_least": 1},
        "Meet me at the café.",
    ),
    (
        "Use a word of three letters or more that reads the same backwards.",
        {"kind": "palindromes", "at_least": 1},
        "Anna agreed at noon.",
    ),
)


def _facts(topic: str, rng: random.Random) -> Answer:
    text, rules = sentences(topic, rng, 1)[0], list[Rule]()
    if "..." in text:
        return _facts(topic, rng)
    d = rng.randint(1, 6)
    for wording, rule, said in rng.sample(_FACTS, rng.randint(1, 3)):
        numbers = {
            "d": d,
            "e": d + 2,
            "year": rng.randint(1900, 1999),
            "i": "I" * rng.randint(0, 2),
        }
        text += " " + said.format(topic=topic, **numbers)
        rules.append((wording, rule))
    return Answer(text, "facts", "a note", tuple(rules))


PLAIN_FORMS: Sequence[Form] = (
    *[_prose] * 6,
    *[_facts] * 4,
    *[_letter] * 2,
    *[_bullets] * 2,
    *[_parts] * 2,
    _in_quotation_marks,
    _steps,
    _dialogue,
    _wrapped,
)
"""as often as it stands here"""
