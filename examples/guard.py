"""Add points to code that does not train: watch, time and change the steps of a word count."""

from __future__ import annotations

import json
import time
from collections import Counter

import hookpoint
from hookpoint import Callback, CallbackPipeline, Replace, guard

# This code declares points, but does not depend on any callback.


@guard("on_clean")
def clean(text: str, *, callbacks: object = None) -> str:
    return " ".join(text.split())


@guard("on_tokenize")
def tokenize(text: str, *, callbacks: object = None) -> list[str]:
    return clean(text, callbacks=callbacks).split(" ")


@guard("on_count")
def count(text: str, *, callbacks: object = None) -> Counter[str]:
    return Counter(tokenize(text, callbacks=callbacks))


# The callbacks.


class Lower(Callback):
    """Change a result. Only an explicit `Replace` can do that."""

    def on_clean_end(self, result: str) -> Replace:
        return Replace(result.lower())


class Stopwatch(Callback):
    """Measure how long tokenize takes, even if it raises."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def on_tokenize_begin(self) -> None:
        self.start = time.perf_counter()

    def on_tokenize_end(self) -> None:
        self.seconds["tokenize"] = time.perf_counter() - self.start

    on_tokenize_error = on_tokenize_end


class Report(Callback):
    """Print results and errors. A handler can take `result`, `error` and any parameter of the function that it watches."""

    def on_count_end(self, text: str, result: Counter[str]) -> None:
        print(f"{len(text)} characters, {result.total()} words, most common {result.most_common(2)}")

    def on_clean_error(self, text: object, error: Exception) -> None:
        print(f"clean({text!r}) failed: {error}")


def main() -> None:
    stopwatch = Stopwatch()
    callbacks = CallbackPipeline([Lower(), stopwatch, Report()])

    count("The hook \n and the point", callbacks=callbacks)
    print("timed:", *stopwatch.seconds)
    try:
        count(3, callbacks=callbacks)  # type: ignore[arg-type]
    except AttributeError:
        print("the caller gets the error")

    class Size(Callback):
        def on_dumps_end(self, result: str) -> None:
            print(f"json.dumps returned {len(result)} characters")

    undo = hookpoint.install(json, "dumps", "on_dumps", callbacks=[Size()])  # third-party code
    json.dumps({"hook": 1})
    undo()


if __name__ == "__main__":
    main()
