"""The parallel example trains on two ranks; tests/examples/test_parallel.py runs it longer, with torchrun."""

from __future__ import annotations

import re
import runpy
from importlib.util import find_spec
from pathlib import Path

import pytest

from hookpoint.parallel.pipeline._stage_split import stages_of

pytestmark = pytest.mark.skipif(find_spec("sklearn") is None, reason="needs scikit-learn")  # importing it takes a second

EXAMPLE = Path(__file__).parents[2] / "examples" / "parallel.py"
LINE = r"test accuracy of the best checkpoint after [12] epochs, world size 2: (\d+\.\d)%"


@pytest.mark.parametrize("strategy", ["data", pytest.param("pipeline", marks=pytest.mark.slow)])
def test_the_example_trains_on_two_ranks(launch, sample, tmp_path, strategy):
    said = launch(EXAMPLE, "--epochs", sample(1, 2), "--strategy", strategy, "--workdir", tmp_path / "run").printed
    (right,) = re.findall(LINE, said)  # only the chief prints it
    assert float(right) > 80
    assert (tmp_path / "run" / "checkpoints" / "best-val-error-top1").exists()


def test_the_network_is_split_into_two_stages(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLE.parent)
    example = runpy.run_path(str(EXAMPLE))
    network = example["residual_network"]()
    stages = stages_of(network, example["STRATEGIES"]["pipeline"].split)
    sizes = [sum(one.numel() for one in stage.parameters()) for stage in stages]
    assert len(sizes) == 2
    assert all(sizes)
    assert sum(sizes) == sum(one.numel() for one in network.parameters())
