from __future__ import annotations

import pytest
import torch
from google.protobuf import text_format
from tensorboard.plugins.projector.projector_config_pb2 import ProjectorConfig
from torch import nn

from hookpoint import Every, Loop, callbacks
from hookpoint.core import errors


def model():
    return nn.ModuleDict({"tokens": nn.Embedding(4, 3), "bags": nn.EmbeddingBag(2, 3), "head": nn.Linear(3, 4)})


def run_with(collector, workdir, net, epochs=2):
    with Loop([collector], model=net, workdir=workdir) as run:
        for epoch in run.epochs(epochs):
            for parameter in net.parameters():
                nn.init.constant_(parameter, epoch)
    folder = workdir / "tensorboard"
    config = text_format.Parse((folder / "projector_config.pbtxt").read_text(), ProjectorConfig())
    return {
        one.tensor_name: (
            [[float(x) for x in line.split("\t")] for line in (folder / one.tensor_path).read_text().splitlines()],
            (folder / one.metadata_path).read_text().splitlines() if one.metadata_path else None,
        )
        for one in config.embeddings
    }


def test_the_projector_contains_the_newest_embedding_tables(tmp_path):
    written = run_with(callbacks.EmbeddingCollector(metadata={"tokens": list("abcd")}), tmp_path, model())
    assert written == {"tokens.weight": ([[2.0] * 3] * 4, list("abcd")), "bags.weight": ([[2.0] * 3] * 2, None)}


def test_a_schedule_and_a_pattern_select_what_is_written(tmp_path):
    collector = callbacks.EmbeddingCollector("head", max_rows=2).when(Every(epochs=2))
    assert run_with(collector, tmp_path, model(), epochs=3) == {"head.weight": ([[2.0] * 3] * 2, None)}


@pytest.mark.parametrize(
    ("text", "lines"),
    [("a\nb\nc\nd\n", ["a", "b"]), ("word\tcount\na\t1\nb\t2\nc\t3\nd\t4\n", ["word\tcount", "a\t1", "b\t2"])],
)
def test_labels_are_read_from_a_file_with_or_without_a_header(tmp_path, text, lines):
    (tmp_path / "labels.tsv").write_text(text)
    collector = callbacks.EmbeddingCollector("tokens", metadata={"tokens": tmp_path / "labels.tsv"}, max_rows=2)
    assert run_with(collector, tmp_path / "run", model())["tokens.weight"][1] == lines


@pytest.mark.parametrize(
    ("arguments", "net", "text"),
    [
        ({}, nn.Linear(1, 1), r"EmbeddingCollector: the model has no torch.nn.Embedding.\n  give +layers="),
        ({"layers": "token"}, model(), r"'token' matches no module.\n  similar +tokens"),
        ({"layers": "0"}, nn.Sequential(nn.BatchNorm1d(3)), r"'0' has a weight of shape \(3,\)"),
        ({"layers": "0"}, nn.Sequential(nn.ReLU()), r"'0' has no weight"),
        ({"metadata": {"toks": ["a"]}}, model(), r"has labels for 'toks', which is not collected.\n  known +tokens, bags"),
        ({"metadata": {"tokens": ["a"]}}, model(), r"'tokens' has 4 rows, but metadata has 1 labels"),
        ({"metadata": {"tokens": "none.tsv"}}, model(), r"none.tsv cannot be read: No such file"),
    ],
)
def test_invalid_layers_and_labels_raise_before_the_run(arguments, net, text):
    with pytest.raises(errors.HookpointError, match=text), Loop([callbacks.EmbeddingCollector(**arguments)], model=net):
        pass


def test_a_label_file_with_uneven_lines_raises(tmp_path):
    (tmp_path / "labels.tsv").write_text("a\tb\n1\n")
    collector = callbacks.EmbeddingCollector(metadata={"tokens": tmp_path / "labels.tsv"})
    with pytest.raises(errors.BadLoop, match="have different numbers of columns"), Loop([collector], model=model()):
        pass


@pytest.mark.parametrize(
    ("arguments", "text"), [({"metadata": ["a"]}, "must map module names to labels"), ({"max_rows": 0}, "max_rows must be")]
)
def test_invalid_arguments_raise(arguments, text):
    with pytest.raises(errors.BadArgument, match=text):
        callbacks.EmbeddingCollector(**arguments)


def test_weights_and_random_numbers_are_not_changed(tmp_path):
    net = model()
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    random = torch.get_rng_state()
    with Loop([callbacks.EmbeddingCollector()], model=net, workdir=tmp_path) as run:
        for _ in run.epochs(1):
            pass
    assert torch.equal(random, torch.get_rng_state())
    assert all(torch.equal(before[name], tensor) for name, tensor in net.state_dict().items())
