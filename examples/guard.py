"""Points in code that trains nothing: a word count whose steps can be watched, timed and changed. Run it with python."""

from __future__ import annotations

import json
import time
from collections import Counter

import hookpoint
from hookpoint import Callback, CallbackPipeline, Replace, guard

# The code itself. It knows where its points are, and not who listens.


@guard("on_clean")
def clean(text: str, *, callbacks: object = None) -> str:
    return " ".join(text.split())


@guard("on_tokenize")
def tokenize(text: str, *, callbacks: object = None) -> list[str]:
    return clean(text, callbacks=callbacks).split(" ")


@guard("on_count")
def count(text: str, *, callbacks: object = None) -> Counter[str]:
    return Counter(tokenize(text, callbacks=callbacks))


# Everything else.


class Lower(Callback):
    """Change a result: nothing else does that by accident."""

    def on_clean_end(self, result: str) -> Replace:
        return Replace(result.lower())


class Stopwatch(Callback):
    """Measure how long each step takes, whatever it is given and however it ends."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def on_tokenize_begin(self) -> None:
        self.began = time.perf_counter()

    def on_tokenize_end(self) -> None:
        self.seconds["tokenize"] = time.perf_counter() - self.began

    on_tokenize_error = on_tokenize_end


class Report(Callback):
    """Say what was found, and what went wrong. Handlers take what they name: parameters of the function, result, error."""

    def on_count_end(self, text: str, result: Counter[str]) -> None:
        print(f"{len(text)} characters, {result.total()} words, most often {result.most_common(2)}")

    def on_clean_error(self, text: object, error: Exception) -> None:
        print(f"clean({text!r}) failed: {error}")


def main() -> None:
    stopwatch = Stopwatch()
    everything_else = CallbackPipeline([Lower(), stopwatch, Report()])

    count("The hook \n and the point", callbacks=everything_else)
    print("timed:", *stopwatch.seconds)
    try:
        count(3, callbacks=everything_else)  # type: ignore[arg-type]
    except AttributeError:
        print("the error went on to whoever called")

    class Size(Callback):
        def on_dumps_end(self, result: str) -> None:
            print(f"json.dumps made {len(result)} characters")

    undo = hookpoint.install(json, "dumps", "on_dumps", callbacks=[Size()])  # code of somebody else
    json.dumps({"hook": 1})
    undo()


if __name__ == "__main__":
    main()
