"""Callbacks of other libraries in a list are recognized by the names of their base classes, and adopted once or rejected.

The libraries need not be installed: the classes below have the module and class names of the libraries' classes.
"""

from __future__ import annotations

import subprocess
import sys

import packaging.version
import pytest

from hookpoint import Callback, CallbackPipeline, EnableCallbackIf, Hooks, Loop, adapters
from hookpoint.core.callback.foreign import BASES, OTHER_PACKAGES
from hookpoint.core.errors import BadArgument, CompileError, NotACallback

LIBRARIES = {"keras", "lightning", "pytorch_lightning", "transformers", "ignite", "fastai", "torch"}


def foreign(module: str, name: str, *bases: type, **methods: object) -> type:
    """Return a class as if another library had defined it."""
    return type(name, bases, {**methods, "__module__": module, "__qualname__": name})


def nothing(self, *args, **kwargs):
    pass


def base(module: str, name: str) -> type:
    """Return the base class of a library's callbacks, with empty methods."""
    names = ("on_epoch_end", "on_train_batch_end", "on_train_epoch_end", "on_log", "on_before_zero_grad", "setup")
    return foreign(module, name, **dict.fromkeys(names, nothing))


@pytest.mark.parametrize(("module", "name"), BASES)
def test_an_object_is_recognized_by_the_names_of_its_base_classes(module, name):
    theirs = type("Mine", (base(module, name),), {"on_epoch_end": lambda self, *args: None})()
    entry = Hooks([theirs]).entries[0]
    assert entry.name == "Mine"
    assert entry.subject.theirs is theirs


@pytest.mark.parametrize(("module", "name"), BASES)
def test_an_object_is_adopted_once_however_often_a_list_is_compiled(module, name):
    theirs = base(module, name)()
    callbacks = [theirs, EnableCallbackIf(theirs, lambda run: True)]
    first, second = Hooks(callbacks), Hooks(callbacks)
    subjects = {id(entry.subject) for hooks in (first, second) for entry in hooks.entries}
    assert subjects == {id(adapters.adopt(theirs))}
    assert callbacks[0] is theirs
    assert callbacks[1].get_pipeline() == [theirs]


def test_two_objects_have_two_callbacks_with_two_names():
    kind = base("keras.src.callbacks.callback", "Callback")
    hooks = Hooks([kind(), kind()])
    assert [entry.name for entry in hooks.entries] == ["Callback", "Callback#2"]
    assert hooks.entries[0].subject is not hooks.entries[1].subject


def test_only_overridden_methods_become_handlers():
    kind = base("keras.src.callbacks.callback", "Callback")
    at_epochs = type("AtEpochs", (kind,), {"on_epoch_end": lambda self, epoch, logs=None: None})
    points = {handler.point for handler in Hooks([at_epochs()]).entries[0].handlers}
    assert "on_epoch_end" in points
    assert not any("_iter_" in point for point in points)
    by_attribute = kind()
    by_attribute.on_train_batch_end = lambda batch, logs=None: None
    assert "on_train_iter_end" in {handler.point for handler in Hooks([by_attribute]).entries[0].handlers}


def test_a_pipeline_does_not_call_the_setup_of_another_library():
    kind = base("lightning.pytorch.callbacks.callback", "Callback")
    called = []
    theirs = type("WithSetup", (kind,), {"setup": lambda self, *args, **kwargs: called.append(args)})()
    CallbackPipeline([theirs]).setup("model", "workdir")
    assert called == []


def test_recognizing_a_callback_imports_no_library():
    program = """
import sys
base = type("Callback", (), {"__module__": "keras.src.callbacks.callback", "on_epoch_end": lambda self, epoch, logs=None: None})
from hookpoint import Callback, Hooks
class Own(Callback):
    def on_epoch_end(self, run): ...
Hooks([Own()])
before = set(sys.modules)
Hooks([Own(), base()])
print(*sorted(before)); print(*sorted(sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    with_our_own, with_theirs = (set(line.split()) for line in done.stdout.splitlines())
    assert not any(name.startswith("hookpoint.adapters") for name in with_our_own)
    assert "hookpoint.adapters.foreign_callbacks.adopt" in with_theirs
    assert not {name.partition(".")[0] for name in with_theirs} & LIBRARIES


@pytest.mark.parametrize("package", OTHER_PACKAGES)
def test_a_callback_of_an_unsupported_library_raises_with_advice(package):
    kind = foreign(f"{package}.callbacks", "Callback", on_epoch_end=lambda self, run: None)
    with pytest.raises(NotACallback, match=r"^Mine is written for .*: a run cannot call its methods.\n  (write|use|attach) "):
        Hooks([type("Mine", (kind,), {})()])


def test_other_classes_of_an_unsupported_library_may_be_base_classes():
    kind = foreign("ignite.base.mixins", "Serializable")
    mine = type("Mine", (kind,), {"on_epoch_end": lambda self, run: None})()
    assert Hooks([mine]).entries[0].subject is mine


def test_an_object_of_an_unknown_library_raises_with_advice():
    with pytest.raises(NotACallback, match=r"^Version is written for packaging: a run cannot call its methods.\n  write "):
        Hooks([packaging.version.Version("1.0")])
    fits_no_point = type("Theirs", (packaging.version.Version,), {"on_train_batch_start": lambda self, trainer: None})
    with pytest.raises(NotACallback, match=r"^Theirs is written for packaging"):
        Hooks([fits_no_point("1.0")])


def test_a_class_instead_of_an_instance_raises():
    kind = base("keras.src.callbacks.callback", "Callback")
    with pytest.raises(NotACallback, match="Callback is a class; expected an instance"):
        Hooks([kind])
    with pytest.raises(NotACallback, match="Callback is a class; expected an instance"):
        adapters.adopt(kind)


def test_adopt_rejects_a_hookpoint_callback():
    with pytest.raises(NotACallback, match="Own is not a Keras 3, Lightning or transformers callback"):
        adapters.adopt(type("Own", (Callback,), {})())


def test_adopt_rejects_unknown_options_and_keeps_valid_ones():
    theirs = base("lightning.pytorch.callbacks.callback", "Callback")()
    with pytest.raises(BadArgument, match=r"^adopt\(Callback\) has no option every=.\n  known .*check_val_every_n_epoch.*name"):
        adapters.adopt(theirs, every=2)
    adopted = adapters.adopt(theirs, check_val_every_n_epoch=2)
    assert adapters.adopt(theirs, name="mine", on_error="warn") is adopted
    assert adopted.options == {"check_val_every_n_epoch": 2}
    entry = Hooks([theirs]).entries[0]
    assert (entry.name, entry.on_error) == ("mine", "warn")


KERAS = ["BackupAndRestore", "OrbaxCheckpoint", "SwapEMAWeights", "TensorBoard"]
LIGHTNING = [
    "BatchSizeFinder",
    "GradientAccumulationScheduler",
    "LearningRateFinder",
    "StochasticWeightAveraging",
    "ThroughputMonitor",
]


@pytest.mark.parametrize(
    ("library", "package", "name"),
    [("Keras", "keras.src.callbacks", name) for name in KERAS]
    + [("Lightning", "lightning.pytorch.callbacks", name) for name in LIGHTNING],
)
def test_a_callback_that_cannot_work_raises_when_compiled(library, package, name):
    theirs = foreign(f"{package}.some_file", name, base(f"{package}.callback", "Callback"))
    with pytest.raises(CompileError, match=rf"^{name} \({library}\) cannot work in a hookpoint run.\n  (use|set|pass) "):
        Hooks([theirs()])
    mine = type("Mine", (theirs,), {})
    with pytest.raises(CompileError, match=rf"^Mine \({library}\) cannot work"):
        Hooks([mine()])
    of_the_user = type(name, (base(f"{package}.callback", "Callback"),), {})
    assert Hooks([of_the_user()]).entries[0].name == name


def test_a_method_without_a_matching_point_raises_when_compiled():
    kind = base("lightning.pytorch.callbacks.callback", "Callback")
    theirs = type("Zero", (kind,), {"on_before_zero_grad": lambda self, *args: None})()
    with pytest.raises(
        CompileError, match=r"^Zero \(Lightning\) defines on_before_zero_grad, but a hookpoint run has no such point"
    ):
        Loop([theirs], extra_callbacks=[], monitors=[])


def test_ignite_engines_without_ignite_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "ignite", None)
    monkeypatch.setitem(sys.modules, "ignite.engine", None)
    with pytest.raises(ImportError, match=r"IgniteEngines needs ignite: pip install 'hookpoint\[ignite\]'"):
        adapters.IgniteEngines()
