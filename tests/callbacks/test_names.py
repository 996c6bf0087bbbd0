from __future__ import annotations

import subprocess
import sys

import pytest

import hookpoint
from hookpoint import Callback, callbacks, monitors
from hookpoint._exports import ALSO_CALLBACKS, CALLBACKS, MONITORS

# Exports that are not callbacks themselves.
NO_CALLBACKS = [
    "BinaryClassificationStats",
    "CheckpointConfig",
    "ClassificationError",
    "Inferencer",
    "ScalarStats",
    "StepTooSlow",
]


@pytest.mark.parametrize(("package", "exports"), [(callbacks, CALLBACKS), (monitors, MONITORS)])
def test_names_are_listed_once_and_sorted(package, exports):
    assert package.__all__ == sorted(exports) == dir(package)


@pytest.mark.parametrize("package", [callbacks, monitors], ids=lambda package: package.__name__)
def test_every_name_is_defined_in_a_module_of_the_same_name(package):
    for name in package.__all__:
        thing = getattr(package, name)
        if isinstance(thing, type):
            assert issubclass(thing, Callback) or name in NO_CALLBACKS
            assert thing.__module__.rpartition(".")[2].replace("_", "") == name.lower()


def test_monitors_can_be_imported_from_callbacks():
    classes = [name for name in monitors.__all__ if isinstance(getattr(monitors, name), type)]
    assert len(classes) >= 6
    assert all(getattr(callbacks, name) is getattr(monitors, name) for name in classes)


@pytest.mark.parametrize("package", [callbacks, monitors], ids=lambda package: package.__name__)
def test_an_unknown_name_raises(package):
    with pytest.raises(AttributeError, match=f"{package.__name__} has no 'Nothing'"):
        package.Nothing  # noqa: B018


def test_wrappers_and_base_classes_can_be_imported_from_callbacks():
    for name in ALSO_CALLBACKS:
        assert getattr(callbacks, name) is getattr(hookpoint, name)
    assert {"LambdaCallback", "PeriodicTrigger"} <= set(ALSO_CALLBACKS)


@pytest.mark.parametrize(
    ("name", "where"),
    [
        ("TensorBoard", "callbacks.TFEventWriter, a default monitor, writes TensorBoard files"),
        ("LearningRateMonitor", "a Runner logs learning_rate automatically; in your own loop, call run.log(learning_rate=...)"),
    ],
)
def test_names_of_other_libraries_raise_with_a_hint(name, where):
    for package in (hookpoint, callbacks):
        with pytest.raises(AttributeError) as caught:
            getattr(package, name)
        assert str(caught.value) == f"{package.__name__} has no '{name}': {where}"


def test_using_every_name_imports_no_third_party_package():
    program = """
import sys
before = set(sys.modules)
from hookpoint import callbacks, monitors
for package in (callbacks, monitors):
    for name in package.__all__:
        getattr(package, name)
loaded = {name.partition(".")[0] for name in set(sys.modules) - before}
print(sorted(loaded - set(sys.stdlib_module_names) - {"hookpoint"}))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
