"""Find typos in the names of points and metrics."""

from __future__ import annotations

from collections.abc import Iterable

SYNONYMS = {"start": "begin", "started": "begin", "finish": "end", "finished": "end", "stop": "end", "iteration": "iter"}


def one_slip_apart(a: str, b: str) -> bool:
    """Return whether one typo turns `a` into `b`: an extra, missing or wrong letter, or two swapped letters."""
    if a == b or abs(len(a) - len(b)) > 1:
        return False
    head = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    a, b = a[head:], b[head:]
    return a[1:] == b[1:] or a[1:] == b or a == b[1:] or (a[:2] == b[1::-1] and a[2:] == b[2:] and len(a) > 1)


def near_miss(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that was most likely meant, or None. Never return the name itself.

    A known name is suggested if `name` differs from it by one typo, has the same words in another order (on_begin_epoch), or
    contains a synonym, such as "start" for "begin" (on_epoch_start). Names with different digits, such as top1 and top5, are
    never treated as misspellings of each other.
    """
    words = sorted(SYNONYMS.get(word, word) for word in name.split("_"))
    for candidate in known:
        numbers = [[c for c in text if c.isdigit()] for text in (name, candidate)]
        if all(numbers) and numbers[0] != numbers[1]:
            continue
        if candidate != name and (sorted(candidate.split("_")) == words or _typo(name, candidate)):
            return candidate
    return None


def _typo(name: str, candidate: str) -> bool:
    letters = ["".join(c for c in text if not c.isdigit()) for text in (name, candidate)]
    name, candidate = name.lower(), candidate.lower()
    is_other_word = len(name) == len(candidate) < 5  # mae and mse differ in one letter, but both are valid
    return letters[0] != letters[1] and (name == candidate or (not is_other_word and one_slip_apart(name, candidate)))
