"""Describe a run's lineage and data, as recorded in run.json."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hookpoint.run_folder.formatting import counted, moment, moment_of, shown
from hookpoint.run_folder.run_folder import RunFolder
from hookpoint.storage.lineage import valid
from hookpoint.storage.run_file import LINEAGE, as_list

KINDS = {"resume": "resumed from", "weights": "weights of"}
MAX_DEPTH, MAX_INPUTS = 8, 16


def lineage_rows(run: RunFolder) -> list[tuple[str, str, str]]:
    """Return the time, the kind and the source of each entry in a run's lineage, oldest first."""
    return [
        (moment(moment_of(entry.get("at"))), KINDS[entry["kind"]], shown(_source(entry, run)))
        for entry in valid(run.facts.get(LINEAGE))
    ]


def _source(entry: Mapping[str, Any], run: RunFolder) -> str:
    source = entry.get("run", {})
    name, checkpoint = source.get("name", ""), entry.get("checkpoint", "")
    if not checkpoint:
        return f"{counted(entry.get('tensors', 0), 'tensor')} of unknown origin"
    step, epoch = entry.get("step"), entry.get("epoch")
    where = [f"step {step}"] if step is not None else []
    where += [f"epoch {epoch}"] if epoch is not None else []
    where += ["averaged"] if "averaged" in entry else []
    text = " ".join([name, checkpoint]).strip() + (f" ({', '.join(where)})" if where else "")
    is_own = source.get("id") is not None and source.get("id") == run.facts.get("id")
    return text if is_own or "workdir" not in source else f"{text} in {source['workdir']}"


def data_rows(run: RunFolder) -> list[tuple[str, str]]:
    """Return a row for the training data and a row for the validation data.

    Each row shows the classes of the loader and its datasets, the number of samples and batches, and the batch size.
    """
    data = run.facts.get("data")
    return [(shown(name), shown(text)) for name, text in _described(data)] if isinstance(data, Mapping) else []


def _described(data: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name in ("train", "val"):
        facts = data.get(name)
        if isinstance(facts, Mapping):
            details = [counted(facts["samples"], "sample")] if type(facts.get("samples")) is int else []
            if type(count := facts.get("batches")) is int:
                details.append(f"{count} batch{'es' * (count != 1)}")
            details += [f"batch size {facts['batch_size']}"] if type(facts.get("batch_size")) is int else []
            details += [facts["order"]] if isinstance(facts.get("order"), str) else []
            yield name, "; ".join(filter(None, [_graph(facts.get("graph")), ", ".join(details)]))


def _graph(node: Any, depth: int = 0) -> str:
    if not isinstance(node, Mapping) or not isinstance(node.get("class"), str) or depth > MAX_DEPTH:
        return ""
    facts = [str(node[key]) for key in ("length", "digest") if isinstance(node.get(key), int | str)]
    text = str(node["class"]) + (f"({', '.join(facts)})" if facts else "")
    inputs = [found for one in as_list(node.get("inputs"))[:MAX_INPUTS] if (found := _graph(one, depth + 1))]
    if not inputs:
        return text
    return f"{text} < {inputs[0]}" if len(inputs) == 1 else f"{text} < [{', '.join(inputs)}]"
