"""The projector's files are read back with TensorBoard's own plugin."""

from __future__ import annotations

import errno
import io
import json
import logging

import numpy
import pytest
import torch
from google.protobuf import text_format
from PIL import Image
from tensorboard.backend.event_processing.data_provider import MultiplexerDataProvider
from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
from tensorboard.plugins.base_plugin import TBContext
from tensorboard.plugins.projector.projector_config_pb2 import ProjectorConfig
from tensorboard.plugins.projector.projector_plugin import ProjectorPlugin
from werkzeug.test import Client

from hookpoint.core import errors
from hookpoint.core.loop.loop import Loop
from hookpoint.monitors import TFEventWriter
from hookpoint.storage.disk import _fs_calls


def write(workdir, *embeddings):
    with Loop([TFEventWriter()], workdir=workdir) as run:
        for embedding in embeddings:
            run.put_embedding(*embedding)
    return workdir / "tensorboard"


def config_of(folder):
    return text_format.Parse((folder / "projector_config.pbtxt").read_text(), ProjectorConfig())


class Projector:
    """TensorBoard's projector plugin on a folder, with the requests of a browser."""

    def __init__(self, folder):
        multiplexer = EventMultiplexer().AddRunsFromDirectory(str(folder))
        multiplexer.Reload()
        context = TBContext(logdir=str(folder), data_provider=MultiplexerDataProvider(multiplexer, str(folder)))
        self._apps = ProjectorPlugin(context).get_plugin_apps()

    def get(self, route, **query):
        response = Client(self._apps[route]).get(route, query_string=query)
        assert response.status_code == 200, response.data
        return response.data

    def tensor(self, name, width):
        return numpy.frombuffer(self.get("/tensor", run=".", name=name), "float32").reshape(-1, width)


@pytest.mark.parametrize("kind", [torch.tensor, numpy.array, list])
def test_the_plugin_serves_the_points_and_their_labels(tmp_path, kind):
    values = [[0.1, -2e-30, 3.0], [1 / 3, 5e20, 6.0]]
    folder = write(tmp_path, ("outputs", kind(values), ["cat", "dog"]))
    projector = Projector(folder)
    (info,) = json.loads(projector.get("/info", run="."))["embeddings"]
    assert (info["tensorName"], info["tensorShape"]) == ("outputs", [2, 3])
    assert (projector.tensor("outputs", 3) == numpy.array(values, "float32")).all()
    assert projector.get("/metadata", run=".", name="outputs") == b"cat\ndog\n"


def test_columns_have_a_header_and_labels_stay_on_one_line(tmp_path):
    labels = {"word": ["a\tb\nc", "", "ö"], "count": numpy.arange(3)}
    folder = write(tmp_path, ("a", torch.zeros(3, 1), labels))
    assert Projector(folder).get("/metadata", run=".", name="a").decode() == "word\tcount\na b c\t0\n-\t1\nö\t2\n"


def test_images_are_served_as_a_sprite(tmp_path):
    images = numpy.zeros((5, 4, 6, 3), "uint8")
    images[3] = 200
    folder = write(tmp_path, ("a", numpy.eye(5), None, images), ("gray", numpy.eye(5), None, images[..., 0]))
    for name in ("a", "gray"):
        sprite = Image.open(io.BytesIO(Projector(folder).get("/sprite_image", run=".", name=name)))
        assert sprite.size == (18, 12)
        assert sprite.getpixel((1, 5)) == (200, 200, 200)  # the fourth image, with three per row
        assert sprite.getpixel((7, 5)) == (0, 0, 0)
    assert list(config_of(folder).embeddings[0].sprite.single_image_dim) == [6, 4]


def test_a_later_embedding_replaces_an_earlier_one_of_the_same_name(tmp_path):
    folder = write(tmp_path, ("a", torch.zeros(3, 2), list("abc")), ("b", torch.ones(1, 1)), ("a", torch.ones(2, 2)))
    assert [(one.tensor_name, list(one.tensor_shape), one.metadata_path) for one in config_of(folder).embeddings] == [
        ("b", [1, 1], ""),
        ("a", [2, 2], ""),
    ]
    assert Projector(folder).tensor("a", 2).tolist() == [[1, 1], [1, 1]]


def test_a_name_is_never_used_as_a_path(tmp_path):
    name = "../../x\n'\"/é"
    folder = write(tmp_path / "run", (name, torch.ones(1, 2), ["x"]))
    assert Projector(folder).tensor(name, 2).tolist() == [[1, 1]]
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    assert [path.parent.parent for path in folder.rglob("tensors.tsv")] == [folder / "projector"]


def test_later_changes_of_the_matrix_have_no_effect(tmp_path):
    matrix, array = torch.ones(1, 2), numpy.ones((1, 2))
    with Loop([TFEventWriter()], workdir=tmp_path) as run:
        run.put_embedding("a", matrix)
        run.put_embedding("b", array)
        matrix.zero_()
        array[:] = 0
    projector = Projector(tmp_path / "tensorboard")
    assert projector.tensor("a", 2).tolist() == projector.tensor("b", 2).tolist() == [[1, 1]]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((torch.zeros(3),), r"embedding 'a' has shape \(3,\); expected rows x dimensions"),
        ((torch.zeros(0, 3),), r"shape \(0, 3\)"),
        (([[1.0], [1.0, 2.0]],), r"shape \(2,\)"),
        (("text",), r"shape \(\)"),
        ((torch.zeros(2, 2), ["x"]), r"embedding 'a' has 2 rows, but metadata has 1 labels"),
        ((torch.zeros(2, 2), {"word": ["x", "y", "z"]}), r"word has 3 labels"),
        ((torch.zeros(2, 2), "xy"), r"metadata must be a list of labels, got 'xy'"),
        ((torch.zeros(2, 2), {}), r"metadata has no columns"),
        ((torch.zeros(2, 2), None, torch.zeros(3, 4, 4)), r"images have shape \(3, 4, 4\); expected 2 images"),
    ],
)
def test_invalid_arguments_raise_in_put_embedding(arguments, text):
    with Loop() as run, pytest.raises(errors.BadValue, match=text):
        run.put_embedding("a", *arguments)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((torch.tensor([[float("nan")]]),), "embedding 'a' has values that are NaN or infinite"),
        ((torch.tensor([[1j]]),), "embedding 'a' has type complex64; expected real numbers"),
        ((torch.zeros(1, 1), None, torch.zeros(1, 4, 4, 2)), "images have 2 channels; expected 1 or 3"),
        ((torch.zeros(1, 1), None, torch.zeros(1, 9000, 4)), "TensorBoard shows at most 8192"),
    ],
)
def test_an_embedding_that_tensorboard_cannot_show_is_only_warned_about(tmp_path, caplog, arguments, text):
    caplog.set_level(logging.WARNING, "hookpoint")
    folder = write(tmp_path, ("a", *arguments), ("b", torch.ones(1, 1)))
    assert text in caplog.text
    assert [one.tensor_name for one in config_of(folder).embeddings] == ["b"]


def test_an_unreadable_config_is_reported_and_kept(tmp_path, caplog):
    (tmp_path / "tensorboard").mkdir()
    config = tmp_path / "tensorboard" / "projector_config.pbtxt"
    config.write_text("embeddings {")
    write(tmp_path, ("a", torch.ones(1, 1)))
    assert "projector_config.pbtxt cannot be read" in caplog.text
    assert config.read_text() == "embeddings {"


def test_entries_of_other_programs_are_kept(tmp_path):
    (tmp_path / "tensorboard").mkdir()
    (tmp_path / "tensorboard" / "projector_config.pbtxt").write_text('embeddings { tensor_name: "mine" tensor_path: "x.tsv" }')
    folder = write(tmp_path, ("a", torch.ones(1, 1)))
    assert [one.tensor_name for one in config_of(folder).embeddings] == ["mine", "a"]


def test_files_stay_consistent_after_a_failure_at_any_file_operation(tmp_path, monkeypatch):
    plain, failed = _fs_calls.perform, 0
    for last in range(1, 200):
        folder = write(tmp_path / str(last), ("a", torch.zeros(3, 2), list("abc")))
        calls = 0

        def perform(call, name, path, *args, limit=last, **kwargs):
            nonlocal calls
            calls += "projector" in str(path)
            if calls >= limit:
                raise OSError(errno.EIO, "gone")
            return plain(call, name, path, *args, **kwargs)

        for module in ("hookpoint.storage.disk.disk", "hookpoint.storage.disk.hashing_writer"):
            monkeypatch.setattr(f"{module}.perform", perform)
        write(tmp_path / str(last), ("a", torch.ones(2, 2), list("xy")))
        monkeypatch.undo()
        if calls < last:
            break
        failed += 1
        for one in config_of(folder).embeddings:
            tensors = (folder / one.tensor_path).read_text().splitlines()
            labels = (folder / one.metadata_path).read_text().splitlines()
            assert len(tensors) == len(labels) == one.tensor_shape[0]
    assert failed > 10
