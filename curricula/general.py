"""The `general` curriculum: following instructions that deterministic verifiers can check."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

from curricula.procedural import Draft, Family, Procedural
from curricula.vocabulary import LEXICON, WORDS_BY_LETTER
from engines.types import Json, Message

Constraint = dict[str, Json]
ENDS = ".!?"
VOWELS = "aeiou"


def repeat(rng: random.Random) -> Draft:
    """`repeat ant 3 times sep - end !` -> `ant-ant-ant!`"""
    word, times = rng.choice(LEXICON), rng.randint(2, 6)
    separator, end = rng.choice("-,_"), rng.choice(ENDS)
    prompt = f"repeat {word} {times} times sep {separator} end {end}"
    rule: Constraint = {
        "kind": "repetition",
        "unit": word,
        "times": times,
        "separator": separator,
        "end": end,
    }
    return _draft("repeat", prompt, prompt, [rule], separator.join([word] * times) + end)


def words(rng: random.Random) -> Draft:
    """`3 words start c no a end .` -> `cot cup cow.`: any such words of the lexicon."""
    count, first, without, allowed = _letter_task(rng)
    end = rng.choice(ENDS)
    prompt = f"{count} words start {first} no {without} end {end}"
    rules: list[Constraint] = [
        {"kind": "ends_with", "text": end},
        {"kind": "joined", "separator": " ", "end": end},
        {"kind": "word_count", "exactly": count},
        {"kind": "distinct"},
        {"kind": "each_starts_with", "text": first},
        {"kind": "no_letter", "letter": without},
        {"kind": "allowed_words", "words": list(WORDS_BY_LETTER[first])},
    ]
    answer = " ".join(rng.sample(allowed, count)) + end
    return _draft("words", prompt, prompt, rules, answer)


def numbered(rng: random.Random) -> Draft:
    """`list cat dog numbered end !` -> `1:cat 2:dog!`"""
    items = [rng.choice(LEXICON) for _ in range(rng.randint(2, 4))]
    end = rng.choice(ENDS)
    prompt = f"list {' '.join(items)} numbered end {end}"
    rule: Constraint = {
        "kind": "numbered_list",
        "items": list(items),
        "mark": ":",
        "separator": " ",
        "end": end,
    }
    answer = " ".join(f"{i}:{item}" for i, item in enumerate(items, 1)) + end
    return _draft("list", prompt, prompt, [rule], answer)


def combined(fewest: int, most: int) -> Callable[[random.Random], Draft]:
    """`write 3 words; alphabetical; upper` -> `ANT CAT DOG`: several constraints at once.

    The answer is drawn first and the constraints are read off it, so each problem can be solved.
    """

    def draw(rng: random.Random) -> Draft:
        answer = _sentence(rng)
        rules = _true_of(answer, rng)
        chosen = sorted(rng.sample(sorted(rules), rng.randint(fewest, most)))
        prompt = f"write {'; '.join(chosen)}"
        constraints: list[Constraint] = [{"kind": "allowed_words", "words": list(LEXICON)}]
        constraints += [rules[text] for text in chosen]
        return _draft("combined", prompt, prompt, constraints, answer)

    return draw


def json_object(rng: random.Random) -> Draft:
    """`json ant bed` -> `{"ant": 1, "bed": 2}`: an object with just these keys."""
    keys = rng.sample(LEXICON, rng.randint(2, 4))
    prompt = f"json {' '.join(keys)}"
    rules: list[Constraint] = [{"kind": "json"}, {"kind": "json_keys", "keys": list(keys)}]
    answer = json.dumps({key: number for number, key in enumerate(keys, 1)})
    return _draft("json", prompt, f"json {' '.join(sorted(keys))}", rules, answer)


def bullets(rng: random.Random) -> Draft:
    """`bullets 2 start c no a` -> `- cot`, `- cup` on two lines."""
    count, first, without, allowed = _letter_task(rng)
    prompt = f"bullets {count} start {first} no {without}"
    rules: list[Constraint] = [
        {"kind": "bullet_list", "count": count},
        {"kind": "each_starts_with", "text": first},
        {"kind": "no_letter", "letter": without},
        {"kind": "distinct"},
        {"kind": "allowed_words", "words": list(WORDS_BY_LETTER[first])},
    ]
    answer = "\n".join(f"- {word}" for word in rng.sample(allowed, count))
    return _draft("bullets", prompt, prompt, rules, answer)


def _letter_task(rng: random.Random) -> tuple[int, str, str, Sequence[str]]:
    """Count, first letter, forbidden letter, and the words that obey; at least `count` do."""
    while True:
        count, first, without = rng.randint(2, 4), rng.choice(sorted(WORDS_BY_LETTER)), ""
        without = rng.choice(VOWELS)
        allowed = [word for word in WORDS_BY_LETTER[first] if without not in word]
        if len(allowed) >= count:
            return count, first, without, allowed


def _sentence(rng: random.Random) -> str:
    items = rng.sample(LEXICON, rng.randint(3, 6))
    if rng.random() < 0.5:
        items.sort()
    style = rng.choice((str.lower, str.upper, str.title))
    return style(" ".join(items)) + rng.choice(ENDS)


def _true_of(answer: str, rng: random.Random) -> Mapping[str, Constraint]:
    """Constraints that hold for `answer`, by their wording in the prompt."""
    body = answer[:-1]
    items = body.lower().split(" ")
    absent = rng.choice([letter for letter in VOWELS + "gmt" if letter not in body.lower()] or "q")
    kept, missing = rng.choice(items), rng.choice([w for w in LEXICON if w not in items])
    rules: dict[str, Constraint] = {
        f"{len(items)} words": {"kind": "word_count", "exactly": len(items)},
        f"start {body[0]}": {"kind": "starts_with", "text": body[0]},
        f"end {answer[-1]}": {"kind": "ends_with", "text": answer[-1]},
        f"use {kept}": {"kind": "keyword", "word": kept},
        f"avoid {missing}": {"kind": "forbidden", "words": [missing]},
        f"no {absent}": {"kind": "no_letter", "letter": absent},
        f"under {len(answer) + 1} letters": {"kind": "length", "at_most": len(answer)},
        "distinct": {"kind": "distinct"},
        "one sentence": {"kind": "sentence_count", "exactly": 1},
    }
    case = "lower" if body.islower() else "upper" if body.isupper() else "title"
    rules[case] = {"kind": "case", "case": case}
    if items == sorted(items):
        rules["alphabetical"] = {"kind": "alphabetical"}
    return rules


def _draft(
    family: str, prompt: str, content: str, constraints: Sequence[Constraint], answer: str
) -> Draft:
    reference: dict[str, Json] = {"constraints": list(constraints)}
    return Draft(family, prompt, content, reference, (Message("assistant", answer),))


class General(Procedural):
    """Levels: easy (one instruction), medium (two constraints at once), hard (three or four)."""

    name: ClassVar[str] = "general"
    levels: ClassVar[Mapping[str, Sequence[Family]]] = {
        "easy": (repeat, words, numbered),
        "medium": (combined(2, 2), json_object, bullets),
        "hard": (combined(3, 4),),
    }
