from __future__ import annotations

import pytest

from hookpoint.callbacks.summaries._collected_data import FIRST, CollectedData, selected

NAMES = [f"layer{number}.{kind}" for number in range(4) for kind in ("weight", "bias")]


def test_everything_unless_told_otherwise():
    assert CollectedData.of(None, True) == CollectedData(True, True, True, FIRST, FIRST)
    assert CollectedData.of({}, True) == CollectedData.of(None, True)


def test_what_is_named_is_changed():
    data = CollectedData.of({"collect_graph": False, "histogram_regular": "bias"}, True)
    assert data == CollectedData(True, False, True, "bias", FIRST)


def test_without_the_default_action_only_what_is_named():
    data = CollectedData.of({"collect_metric": True, "gradient_regular": "^layer1"}, False)
    assert data == CollectedData(True, False, False, None, "^layer1")
    assert CollectedData.of(None, False) == CollectedData(False, False, False, None, None)


def test_the_first_five_parameters_or_those_an_expression_is_found_in():
    assert selected(FIRST, NAMES) == NAMES[:5]
    assert selected("bias$", NAMES) == [f"layer{number}.bias" for number in range(4)]
    assert selected("weight|2", NAMES)[-2:] == ["layer2.bias", "layer3.weight"]


@pytest.mark.parametrize("key", ["collect_train_lineage", "collect_eval_lineage", "collect_dataset_graph", "collect_landscape"])
def test_what_is_not_collected_here_may_be_switched_off(key):
    assert CollectedData.of({key: False}, True) == CollectedData()
    with pytest.raises(ValueError, match=f"'{key}': True}} is not supported"):
        CollectedData.of({key: True}, True)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"collect_metrics": True}, r"'collect_metrics': True} is unknown.\n  choose    collect_graph, collect_input_data"),
        ({"collect_metric": "yes"}, r"'collect_metric': 'yes'} must be True or False"),
        ({"histogram_regular": "("}, r"is not a regular expression: missing \)"),
        ({"gradient_regular": 5}, "is not a regular expression"),
    ],
)
def test_mistakes_are_refused(given, message):
    with pytest.raises(ValueError, match=message):
        CollectedData.of(given, True)
