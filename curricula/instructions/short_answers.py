"""Answers of a few lines: choices, names, numbers, rows of words, poems, other scripts."""

from __future__ import annotations

import random
from collections.abc import Sequence

from curricula.instructions.written_answers import (
    ADJECTIVES,
    Answer,
    Form,
    Rule,
    counted,
    sentences,
)
from curricula.vocabulary import LEXICON
from engines.types import Json


def _poem(topic: str, rng: random.Random) -> Answer:
    word = rng.choice(("cat", "sun", "map", "tea", "owl"))
    fitting = {
        "c": "Clouds over the hill",
        "a": "All is calm today",
        "t": "The rain begins to fall",
        "s": "Soft light in the lane",
        "u": "Under the old bridge",
        "n": "Nobody is home",
        "m": "Many birds return",
        "p": "Paths lead to the lake",
        "e": "Evening comes so soon",
        "o": "Over the quiet field",
        "w": "Winds bring back the song",
        "l": "Leaves turn red and gold",
    }
    rule: Rule = (
        f"The first letters of the lines must spell {word}.",
        {"kind": "acrostic_of_lines", "word": word},
    )
    end = rng.choice(("", ",", ";", " ~"))
    rules: list[Rule] = [rule]
    if end:
        rules.append(
            (
                f"End every line with `{end.strip()}`.",
                {"kind": "lines_end_with", "text": end.strip()},
            )
        )
    text = "\n".join(fitting[letter] + end for letter in word)
    return Answer(text, "poem", "a poem", tuple(rules))


def _choice(topic: str, rng: random.Random) -> Answer:
    letters = "ABCD"[: rng.randint(2, 4)]
    kind = rng.randrange(4)
    if kind == 0:
        rule: Rule = (
            f"End with a line such as `Answer: A`, with one of the letters {letters}.",
            {"kind": "chosen_letter", "letters": letters},
        )
        said = sentences(topic, rng, 1)[0]
        return Answer(f"{said}\nAnswer: {rng.choice(letters)}", "choice", "a choice", (rule,))
    if kind == 1:
        options: list[Json] = list(rng.sample(("I am sure.", "I am not sure.", "Maybe."), 2))
        rule = (
            f"Answer with `{options[0]}` or `{options[1]}` and nothing else.",
            {"kind": "one_of", "options": options},
        )
        return Answer(str(rng.choice(options)), "choice", "what you think", (rule,))
    if kind == 2:
        rule = ("Answer with one number in digits and nothing else.", {"kind": "only_number"})
        return Answer(str(rng.randint(1, 999)), "choice", "a guess of how many", (rule,))
    style = rng.choice(("snake", "kebab", "constant"))
    joined = {"snake": "_", "kebab": "-", "constant": "_"}[style].join(
        (rng.choice(ADJECTIVES), topic)
    )
    named = {"snake": "snake_case", "kebab": "kebab-case", "constant": "CONSTANT_CASE"}[style]
    rule = (
        f"Answer with one name of at least two words in {named} and nothing else.",
        {"kind": "naming_style", "style": style},
    )
    return Answer(joined.upper() if style == "constant" else joined, "choice", "a name", (rule,))


def _words(topic: str, rng: random.Random) -> Answer:
    words = rng.sample(LEXICON, rng.randint(3, 6))
    letter = rng.choice(sorted({word[0] for word in LEXICON}))
    alike = [word for word in LEXICON if word[0] == letter]
    last = rng.choice("tgnp")
    ending = [word for word in LEXICON if word[-1] == last]
    vowel = rng.choice("aeio")
    holding = [word for word in LEXICON if vowel in word]
    growing = ["a", "to", *words[:1], rng.choice(("moon", "rain", "lake")), "bread", "window"]
    count = rng.randint(3, 6)
    few = rng.sample(LEXICON, 8)
    listed: list[Json] = [*few]
    choices: Sequence[tuple[list[str], str, dict[str, Json]]] = (
        (sorted(words), "Put them in alphabetical order.", {"kind": "alphabetical"}),
        (
            sorted(words, reverse=True),
            "Put them in the order of the alphabet read backwards.",
            {"kind": "reverse_alphabetical"},
        ),
        (
            growing[:count],
            "Let each word have more letters than the one before it.",
            {"kind": "growing_words"},
        ),
        (
            _chain(rng),
            "Let each word begin with the last letter of the one before it.",
            {"kind": "word_chain"},
        ),
        (
            [w.upper() if i % 2 == 0 else w for i, w in enumerate(words)],
            "Write words in capitals and words in small letters in turns.",
            {"kind": "alternating_case"},
        ),
        (
            rng.sample(alike, min(3, len(alike))),
            f"Begin every word with {letter}.",
            {"kind": "each_starts_with", "text": letter},
        ),
        (
            rng.sample(ending, 3),
            f"End every word with {last}.",
            {"kind": "each_ends_with", "text": last},
        ),
        (
            rng.sample(holding, 3),
            f"Let every word contain the letter {vowel}.",
            {"kind": "each_contains_letter", "letter": vowel},
        ),
        (
            rng.sample(few, 4),
            f"Use no words but these: {', '.join(few)}.",
            {"kind": "allowed_words", "words": listed},
        ),
        (words, "Use no word of fewer than 3 letters.", {"kind": "shortest_word", "at_least": 3}),
        (words, "Write letters, digits and spaces only.", {"kind": "no_punctuation"}),
        (
            [*words[:2], "of", topic],
            f"Use the words `of {topic}` exactly so.",
            {"kind": "phrase", "text": f"of {topic}"},
        ),
    )
    chosen, wording, constraint = rng.choice(choices)
    return Answer(" ".join(chosen), "words", "a few words", ((wording, constraint),))


_FIRST_LETTERS = {word[0] for word in LEXICON}


def _chain(rng: random.Random) -> list[str]:
    chain = [rng.choice([word for word in LEXICON if word[-1] in _FIRST_LETTERS])]
    for _ in range(3):
        after = [word for word in LEXICON if word[0] == chain[-1][-1] and word not in chain]
        chain += rng.sample(after, 1) if after else []
    return chain


def _numbers(topic: str, rng: random.Random) -> Answer:
    chosen = sorted(rng.sample(range(1, 100), rng.randint(2, 4)))
    even = [2 * number for number in chosen]
    total, high = sum(chosen), max(chosen)
    choices: Sequence[tuple[list[int], str, dict[str, Json]]] = (
        (
            chosen,
            f"Name exactly {len(chosen)} numbers.",
            {"kind": "numbers", "exactly": len(chosen)},
        ),
        (chosen, "Let each number be larger than the one before it.", {"kind": "growing_numbers"}),
        (even, "Name even numbers only.", {"kind": "even_numbers"}),
        (
            chosen,
            f"Name numbers that add up to {total}, and no others.",
            {"kind": "sum_of_numbers", "total": total},
        ),
        (
            chosen,
            f"Name no number below 1 or above {high}.",
            {"kind": "number_between", "low": 1, "high": high},
        ),
    )
    numbers, wording, constraint = rng.choice(choices)
    text = f"I count {' and '.join(map(str, numbers))}."
    return Answer(text, "numbers", "some numbers", ((wording, constraint),))


def _lines(topic: str, rng: random.Random) -> Answer:
    said = [f"{a} {topic}" for a in rng.sample(ADJECTIVES, rng.randint(2, 4))]
    keys: list[Json] = ["name", "size"]
    count = len(said)
    choices: Sequence[tuple[str, str, dict[str, Json]]] = (
        (
            "\n".join(f"    {line}" for line in said),
            "Set every line in by exactly 4 spaces.",
            {"kind": "indentation", "exactly": 4},
        ),
        (
            "\n".join(f"name: {a}\nsize: {n}" for a, n in [(topic, count)]),
            "Write lines of the form `key: value` for name and size, in this order.",
            {"kind": "key_value_lines", "keys": keys},
        ),
        (
            "\n".join(f"+ {line}" for line in said),
            "Begin every line with `+`.",
            {"kind": "lines_start_with", "text": "+"},
        ),
        (
            "\n".join(said),
            "End no line with a mark of punctuation.",
            {"kind": "lines_end_without_mark"},
        ),
        (
            "\n".join(f"So:\n* {line}" if not i else f"* {line}" for i, line in enumerate(said)),
            f"Add a list of exactly {counted(count, 'items')} that begin with `*`.",
            {"kind": "bullet_count", "exactly": count},
        ),
        (
            "\n".join(["Listen!", *said, "Listen!"]),
            "Let the first and the last line be: Listen!",
            {"kind": "starts_and_ends_with_line", "text": "Listen!"},
        ),
        (
            f"```\n{said[0]}\n```",
            "Answer with one block between fences and nothing else.",
            {"kind": "only_code_block"},
        ),
        (
            f"All of it is *{said[0]}*.",
            "Set at least one part apart by asterisks: *so*.",
            {"kind": "highlights", "at_least": 1},
        ),
        (
            f'The sign says "{said[0]}".',
            f'Quote the words "{said[0]}" in double quotation marks.',
            {"kind": "quotes", "text": said[0]},
        ),
        (
            f"Yes, {topic} are that.",
            "Begin with yes or no, and use only one of the two.",
            {"kind": "yes_or_no"},
        ),
        (
            f"Go! {topic.capitalize()} wait. Run!",
            "End no two sentences in a row with the same mark.",
            {"kind": "ends_alternate"},
        ),
        (
            f"I see {topic}. {topic.capitalize()} see me.",
            "Begin each sentence with the last word of the one before it.",
            {"kind": "sentence_chain"},
        ),
        (
            f"I like {topic}. My friends know it.",
            "Use I, we or a form of them in every sentence.",
            {"kind": "first_person"},
        ),
        (
            f"You like {topic}. Your friends know it.",
            "Use you or your in every sentence.",
            {"kind": "second_person"},
        ),
        (
            f"{topic.capitalize()} grow. {topic.capitalize()} rest.",
            f"Begin every sentence with the word {topic}.",
            {"kind": "each_sentence_starts", "word": topic},
        ),
        (
            f"I know {topic}. 🎉 You know it. 🎉",
            "Put an emoji after every sentence.",
            {"kind": "emoji_ends_each_sentence"},
        ),
    )
    text, wording, constraint = rng.choice(choices)
    return Answer(text, "lines", "a few lines", ((wording, constraint),))


_SAID: dict[str, tuple[str, str]] = {
    "Greek": ("Καλημέρα σε όλους.", "Ευχαριστώ πολύ."),
    "Cyrillic": ("Доброе утро всем.", "Большое спасибо."),
    "Arabic": ("صباح الخير للجميع.", "شكرا جزيلا."),
    "Hebrew": ("בוקר טוב לכולם.", "תודה רבה."),
    "Devanagari": ("आप सभी को नमस्ते।", "बहुत धन्यवाद।"),
    "Hangul": ("안녕하세요 여러분.", "정말 감사합니다."),
    "Han": ("大家早上好。", "非常感谢。"),
    "Japanese": ("みなさん、おはようございます。", "ありがとうございます。"),
    "Thai": ("สวัสดีทุกคน.", "ขอบคุณมาก."),
    "Armenian": ("Բարի լույս բոլորին։", "Շատ շնորհակալ եմ։"),
    "Georgian": ("დილა მშვიდობისა ყველას.", "დიდი მადლობა."),
}


def _scripts(topic: str, rng: random.Random) -> Answer:
    first, second = rng.sample(sorted(set(_SAID) - {"Thai"}), 2)  # which ends no sentence
    both: list[Json] = [first, second]
    kind = rng.randrange(4)
    if kind == 0:
        rule: Rule = (f"Write in {first} script.", {"kind": "script", "script": first})
        return Answer(" ".join(_SAID[first]), "scripts", "a greeting", (rule,))
    if kind == 1:
        rule = (
            f"Use at least 4 letters of {first} script.",
            {"kind": "letters_of_script", "script": first, "at_least": 4},
        )
        return Answer(f"They say: {_SAID[first][0]}", "scripts", "a greeting", (rule,))
    wording = f"one in {first} script, then one in {second} script, and nothing else."
    if kind == 2:
        rule = (
            f"Write two paragraphs: {wording}",
            {"kind": "scripts_by_paragraph", "scripts": both},
        )
        return Answer(f"{_SAID[first][0]}\n\n{_SAID[second][0]}", "scripts", "greetings", (rule,))
    rule = (f"Write two sentences: {wording}", {"kind": "scripts_by_sentence", "scripts": both})
    return Answer(f"{_SAID[first][0]} {_SAID[second][1]}", "scripts", "greetings", (rule,))


SHORT_FORMS: Sequence[Form] = (
    _poem,
    *[_choice] * 2,
    *[_words] * 4,
    *[_numbers] * 2,
    *[_lines] * 5,
    *[_scripts] * 2,
)
"""as often as it stands here"""
