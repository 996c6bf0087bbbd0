"""adopt: wrap another library's callback in a hookpoint callback."""

from __future__ import annotations

from importlib import import_module
from typing import Any
from weakref import WeakValueDictionary

from hookpoint.adapters.foreign_callbacks._adopted import Adopted
from hookpoint.core.callback.callback import Callback
from hookpoint.core.callback.foreign import BASES, adopted, base_of
from hookpoint.core.errors import NotACallback

_CLASSES = {
    "Keras": ("_keras_callback", "KerasCallback"),
    "Lightning": ("_lightning_callback", "LightningCallback"),
    "transformers": ("_trainer_callback", "TrainerCallback"),
}
# Maps the id of each adopted object to its hookpoint callback. The callback holds a reference to the object, so Python cannot
# give the same id to another object while the callback exists.
_ADOPTED: WeakValueDictionary[int, Adopted] = WeakValueDictionary()


def adopt(callback: Any, **options: Any) -> Callback:
    """Return a hookpoint callback that calls an unchanged Keras 3, Lightning or transformers callback.

    If you pass such a callback to a Runner or Loop, the callback is adopted automatically. Call this function to set options
    of the trainer that the callback was written for:

    - Lightning: `check_val_every_n_epoch`, `val_check_interval` and `log_every_n_steps` of its Trainer.
    - transformers: any argument of TrainingArguments, such as `metric_for_best_model="eval_loss"`, or all of them as `args`.
    - All libraries: `name`, `on_error` and `ranks`, as for other callbacks.

    Each object is adopted once. Adopting it again returns the same callback, with the new options.

        Runner(model, optimizer, criterion, callbacks=[adopt(EarlyStoppingCallback(3), metric_for_best_model="eval_loss")])
    """
    if isinstance(callback, type):
        raise NotACallback.a_class(callback)
    known = _ADOPTED.get(id(callback))
    if known is not None:
        known.configure(options)
        return known
    base = base_of(callback)
    if base is None:
        adopted(callback)  # raises a more specific error for objects from some libraries
        kind = type(callback).__name__
        raise NotACallback(f"{kind} is not a Keras 3, Lightning or transformers callback.", write=f"callbacks=[{kind}(...)]")
    module, name = _CLASSES[BASES[base.__module__, base.__qualname__]]
    wrapper: Adopted = getattr(import_module(f"hookpoint.adapters.foreign_callbacks.{module}"), name)(callback, base, **options)
    _ADOPTED[id(callback)] = wrapper
    return wrapper
