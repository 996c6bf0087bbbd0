"""EmbeddingCollector: send embedding tables to TensorBoard's projector."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Unpack

from hookpoint.callbacks._shared.arguments import integer
from hookpoint.callbacks._shared.async_array import AsyncArray
from hookpoint.callbacks._shared.name_pattern import NamePattern, Pattern
from hookpoint.callbacks._shared.named_modules import named_modules
from hookpoint.callbacks._shared.sharded_tensors import full_tensor
from hookpoint.core.callback.callback import Callback, Options
from hookpoint.core.errors import BadArgument, BadLoop
from hookpoint.core.log.embedding import Embedding, Metadata, check_labels
from hookpoint.core.run.run import Run
from hookpoint.core.text.terminal import few


class EmbeddingCollector(Callback):
    """Send the model's embedding tables to TensorBoard's projector when triggered, by default at the end of each epoch.

        layers: A pattern for the names of modules, such as "*.tok_embeddings", or a list of patterns. Each module needs a
            two-dimensional `weight`. By default, all `torch.nn.Embedding` and `EmbeddingBag` modules are sent.
        metadata: Maps module names to row labels: a list, a mapping from column names to lists, or the path of a TSV file.
            As in TensorBoard, a file with more than one column begins with a header.
        max_rows: Maximum number of rows to send per table. The first rows are sent.

    The projector shows only the newest table with each name. To show other vectors, such as outputs of the model, call
    `run.put_embedding`. Sharded tables are gathered from all ranks. In a pipeline, the tables of the first stage are sent.

    >>> collector = EmbeddingCollector("tokens", metadata={"tokens": ["the", "a", "of"]}).when(Every(epochs=5))
    """

    collective = True
    step_cost = "nothing; a trigger queues a copy to the host, without waiting for a GPU or the disk"

    def __init__(
        self,
        layers: Pattern | Iterable[Pattern] | None = None,
        metadata: Mapping[str, Metadata | str | os.PathLike[str]] | None = None,
        *,
        max_rows: int = 10_000,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(**options)
        if metadata is not None and not isinstance(metadata, Mapping):
            write = 'metadata={"module name": labels}'
            raise BadArgument(f"EmbeddingCollector: metadata must map module names to labels, got {metadata!r}.", write=write)
        self.layers = None if layers is None else NamePattern("EmbeddingCollector", layers)
        self.metadata = dict(metadata or {})
        self.max_rows = integer("EmbeddingCollector", "max_rows", max_rows, least=1)
        self._labels: dict[str, Metadata] = {}

    def on_setup(self, run: Run) -> None:
        owner = self.name or "EmbeddingCollector"
        tables = self._tables(run)
        if not tables and not run.team.has_stages:
            raise BadLoop(f"{owner}: the model has no torch.nn.Embedding.", give="layers=, the names of modules with a weight")
        for name, weight in tables.items():
            if getattr(weight, "ndim", None) != 2:
                shape = "no weight" if weight is None else f"a weight of shape {tuple(weight.shape)}"
                raise BadLoop(f"{owner}: {name!r} has {shape}; expected a two-dimensional weight.")
        for name, labels in self.metadata.items():
            if name in tables:
                self._labels[name] = self._checked(owner, name, labels, len(tables[name]))
            elif not run.team.has_stages:  # in a pipeline, the module may be on another rank
                raise BadLoop(f"{owner}: metadata has labels for {name!r}, which is not collected.", known=few(list(tables), 8))

    def on_trigger(self, run: Run) -> None:
        for name, weight in self._tables(run).items():
            rows = full_tensor(weight.detach())[: self.max_rows]
            if run.is_chief:
                run.monitors.put("embedding", {f"{name}.weight": Embedding(AsyncArray(rows), self._labels.get(name))})

    def _tables(self, run: Run) -> dict[str, Any]:
        if self.layers is not None:
            named = named_modules(run.model)
            owner = self.name or "EmbeddingCollector"
            modules = self.layers.select(named) if run.team.has_stages else self.layers.require(owner, "module", named)
        else:
            modules = {name: module for name, module in named_modules(run.model) if _is_embedding(module)}
        return {name: getattr(module, "weight", None) for name, module in modules.items()}

    def _checked(self, owner: str, name: str, labels: Any, rows: int) -> Metadata:
        """Return the labels of the rows that are sent."""
        if isinstance(labels, str | os.PathLike):
            labels = _read(owner, Path(labels))
        check_labels(f"{owner}: {name!r}", labels, rows)
        if isinstance(labels, Mapping):
            return {column: list(values)[: self.max_rows] for column, values in labels.items()}
        return list(labels)[: self.max_rows]


def _is_embedding(module: Any) -> bool:
    import torch

    return isinstance(module, torch.nn.Embedding | torch.nn.EmbeddingBag)


def _read(owner: str, path: Path) -> Metadata:
    """Return the labels in a TSV file."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise BadLoop(f"{owner}: {path} cannot be read: {reason}.", give="a text file with one line per row") from None
    rows = [line.split("\t") for line in lines if line]
    if not rows or len(rows[0]) == 1:
        return [row[0] for row in rows]
    if any(len(row) != len(rows[0]) for row in rows):
        raise BadLoop(f"{owner}: the lines of {path} have different numbers of columns.")
    header, *values = rows
    return dict(zip(header, map(list, zip(*values, strict=True)), strict=True))
