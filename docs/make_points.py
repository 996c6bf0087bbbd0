"""Write points.md from the table of points: `make docs`. A test keeps the page and the table in step."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import hookpoint
from hookpoint.core.points import FOREIGN, RUN_NAMES

PAGE = Path(__file__).with_name("points.md")

INTRODUCTION = """\
# The points of a run

<!-- Made by docs/make_points.py from the table in src/hookpoint/core/points.py. Do not edit: run `make docs`. -->

A point is a named moment. A callback is called at the points its methods are named after, and gets the arguments it names.
This page is made from the table that the library itself works by; a program gets it from `hookpoint.points()`, a `Point` each:

```python
import hookpoint

for point in hookpoint.points()[:3]:
    print(point.name, point.offers)
```

```text
on_setup ('run', 'epoch', 'logs')
on_run_begin ('run', 'epoch', 'logs')
on_epoch_begin ('run', 'epoch', 'logs')
```

- [In the order they fire](#in-the-order-they-fire)
- [Modes](#modes), [begin and end](#begin-and-end), [in the data](#in-the-data), [arguments](#arguments)
- Coming from [Orca](#orca), [Keras](#keras), [MindSpore](#mindspore), [tensorpack](#tensorpack), [cinnamon](#cinnamon),
  or [another trainer](#other-trainers)
"""

RULES = """\
## Modes

`on_epoch_*` fires once per training epoch, `on_iter_*` in every mode; `run.mode` says which one it is. A validation pass fires
`on_val_*` and `on_iter_*` only, a prediction pass `on_pred_*` and `on_iter_*` only, wherever they start: after the training
batches, in the middle of an iteration, or outside of any epoch. Clocks, schedules and `on_trigger` move in training only.

## Begin and end

A begin is followed by exactly one of: its end; `on_iter_skip`, where a verdict skipped the iteration; or, after an exception,
nothing but `on_exception` and `on_run_end`. A `break` out of a loop of one's own ends the iteration and the epoch normally,
with `run.epoch_complete` false. `on_trigger` runs for complete epochs only.

In a [runner](runner.md), a step that raises fires `on_iter_error` first. A callback that asks for `run.retry()` or
`run.skip_batch()` there has dealt with it, and `on_iter_skip` follows; otherwise the error goes on.

In a loop of one's own, `on_step_begin` and `on_step_end` fire where the optimizer has step hooks, as those of PyTorch have. The
points of the MainCallback fire when the loop's body says so: `run.fire("on_train_forward")`.
"""

IN_THE_DATA = """\
## In the data

These are called where data is made, in worker processes for one, and know of no run: [points in the data](data-points.md).
"""

ARGUMENTS = {
    "run": f"the run; also as {', '.join(f'`{name}`' for name in RUN_NAMES[1:])}",
    "epoch": "`run.epoch`, the epoch now running, from 1; 0 before the first",
    "logs": "the metrics of this moment, by name: those with a value of the running epoch, turned into floats when read",
    "batch": "the data; in Keras's `on_*batch_*` spellings the index",
    "batch_idx": "the index of the batch in its pass, from 0",
    "outputs": "what the forward computed, or None",
    "loss": "the loss of this iteration, or None",
    "error": "the exception",
    "path": "where the checkpoint is",
    "tags": "what it was asked for by",
    "records": "a list of `Record`, what was logged since the last call",
    "sample": "what the data set gave for an index",
    "index": "that index; of a stream, the number of the sample in its pass and worker, from 0",
    "indices": "the indices that a batch is made of, as the sampler gave them; None for a stream",
    "mode": '`"train"`, `"val"`, `"pred"`, or None outside of a pass of a run',
    "settings": "the settings of the loader when the pass began; see [data-points.md](data-points.md)",
    "worker": "the number of the worker process, from 0; None in the main process",
}

SYSTEMS = {
    "Orca": """\
The names of BigDL Orca's PyTorch callbacks, called with `runner`, which is the run. `on_iter_forward`, `on_train_forward`,
`on_val_forward`, `on_pred_forward`, `on_iter_backward` and `on_lr_adjust` are called the same here, and belong to the one
`MainCallback` (`MainCallBack` is the same class) here too.

- `before_epoch` and `after_epoch` are called for the epoch of every mode: training, validation and prediction. So are
  `before_iter` and `after_iter`. There, overriding `before_train_epoch` hides `before_epoch`; here both are called, the general
  one first at a begin and last at an end.
- `runner.output` is `run.outputs`. `runner.put`, `get`, `update` and `remove` work on `run.store`.
- `runner.stop = True` is refused: `run.stop("why")` says it, and stops the whole run, not the epoch only.
""",
    "Keras": """\
`(epoch, logs)` and `(batch, logs)` handlers run as they are.

- `batch` is the index of the batch in these spellings, as there. In our own spellings it is the data, `batch_idx` the index.
- `epoch` counts from 1.
- `logs` at the end of a training batch holds what that batch logged, at the end of an epoch the means over it. It cannot be
  written to: `run.log(name, value)` adds a metric that everyone sees.
- Outputs of a prediction are the argument `outputs`, not a key of `logs`.
- `on_batch_*` and `on_train_batch_*` are one point; a class has one of the two.
- `self.model` is `run.model`, and instead of setting `self.model.stop_training`, call `run.stop()`: add `run` to the arguments.
""",
    "MindSpore": """\
Handlers with `run_context` run as they are; `run_context` is the run. `on_train_epoch_begin` is called the same here.

- `run_context.original_args()` is one dict with attributes that lasts the run and keeps what callbacks write. `cur_epoch_num`,
  `cur_step_num` (training batches, from 1), `batch_num`, `epoch_num`, `train_network`, `optimizer`, `loss_fn` and the like
  follow the run. `net_outputs` is `run.loss`, or `run.outputs` where there is no loss; between iterations, where both are gone,
  it is the latest logged `loss`.
- `run_context.request_stop()` is `run.stop()`. In evaluation it stops the run too; `run.stop_epoch()` ends that pass only.
- The bare names (`begin`, `step_end`, ...) count only where `run_context` is the sole parameter, and in training only.
- `on_eval_begin` and `on_eval_epoch_begin` are one moment here, as are `on_eval_epoch_end` and `on_eval_end`; both are called.
- The names of `DSCallback` and `WaitedDSCallback` are refused; a `HookedLoader` does [what they are for](data-points.md).
""",
    "tensorpack": """\
Underscore methods count where they take no parameters. They find the run in `self.trainer`, and its clocks in `self.epoch_num`,
`self.global_step` and `self.local_step`.

- `_after_run` and `_trigger_step` are one moment here; both are called, in this order. `_before_run(self, ctx)`, which is about
  a run of TensorFlow's graph, is not called.
- `_trigger_epoch` and `_after_epoch` are called after a stop, too.
- `chief_only = True` is `ranks = "chief"`, and not the default. `raise StopTraining` is `raise StopRun("why")`.
- `PeriodicTrigger`, `PeriodicCallback`, `EnableCallbackIf` and `CallbackFactory` are here. `PeriodicTrigger` leaves all but
  `_trigger` as it is, `_trigger_epoch` included. The predicate of `EnableCallbackIf` gets the run.
""",
}

CINNAMON = """\
## cinnamon

There are no fixed names: any `on_...` method is a handler, called by a guard, by `run.fire(...)` or by
`callback.run(hookpoint=..., logs=...)`; see [guard.md](guard.md).

- `logs` of a guarded call is a mapping of all the call offers: its parameters by name, `args`, `kwargs`, at the end `result`.
  Each of them can be named as an argument of its own.
- After an exception `on_x_error` is called in place of `on_x_end`. `callbacks` is found by position, too.
- A class that overrides `run` gets every point of a run through it, those of the MainCallback, `on_trigger` and `on_records`
  excepted.
- `on_fit_begin`, `on_batch_fit_end` and the like are points of one's own here; no loop fires them.
"""

FOREIGN_NAMES = """\
## Other trainers

Methods with these names are refused when callbacks are compiled, with our name for the same moment in the message. Their
arguments differ, so calling them as they are would only fail later.
"""


def page() -> str:
    """Return the text of points.md."""
    parts = [INTRODUCTION, f"## In the order they fire\n\n{points_table(in_data=False)}", RULES]
    parts += [f"{IN_THE_DATA}\n{points_table(in_data=True)}", f"## Arguments\n\n{arguments_table()}"]
    parts += [f"## {system}\n\n{words}\n{spellings_table(system)}" for system, words in SYSTEMS.items()]
    parts += [CINNAMON, f"{FOREIGN_NAMES}\n{table(('there', 'here'), ((code(a), code(b)) for a, b in FOREIGN.items()))}"]
    return "\n".join(parts)


def points_table(*, in_data: bool) -> str:
    rows = (
        (
            code(point.name),
            point.fires,
            ", ".join(point.offers),
            ", ".join(point.modes),
            "MainCallback" if point.main_only else "",
        )
        for point in hookpoint.points()
        if point.in_data is in_data
    )
    return table(("point", "fires", "offers", "mode", "only in"), rows)


def arguments_table() -> str:
    offered = {name for point in hookpoint.points() for name in point.offers}
    assert offered == set(ARGUMENTS), "ARGUMENTS in make_points.py and the table of points name different arguments"
    return table(("argument", "what it is"), ((code(name), words) for name, words in ARGUMENTS.items()))


def spellings_table(system: str) -> str:
    here: dict[tuple[str, str], list[str]] = {}
    for point in hookpoint.points():
        for spelling in point.spellings:
            if spelling.system == system:
                here.setdefault((spelling.name, spelling.differs), []).append(code(point.name))
    rows = ((code(name), ", ".join(names), differs) for (name, differs), names in here.items())
    return table(("there", "here", "difference"), rows)


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "".join(f"|{'|'.join(f' {cell} ' if cell else ' ' for cell in line)}|\n" for line in lines)


def code(name: str) -> str:
    return f"`{name}`"


if __name__ == "__main__":
    PAGE.write_text(page())
