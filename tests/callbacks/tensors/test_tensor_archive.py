from __future__ import annotations

import io
import zipfile

import numpy
import pytest

from hookpoint.callbacks.tensors._tensor_archive import archive, archive_key, archive_keys


def test_numpy_reads_it_without_pickle():
    arrays = {
        "file": numpy.arange(3),
        "a/b.c": numpy.zeros((2, 0), "float16"),
        "args": numpy.array(0.5),
        "x": numpy.array("word"),
    }
    with numpy.load(io.BytesIO(archive(arrays)), allow_pickle=False) as found:
        assert set(found.files) == set(arrays)
        for name, array in arrays.items():
            assert found[name].dtype == array.dtype
            assert numpy.array_equal(found[name], array)


def test_objects_are_refused():
    with pytest.raises(ValueError, match="allow_pickle"):
        archive({"x": numpy.array([{}], dtype=object)})


def test_the_same_arrays_are_the_same_bytes():
    assert archive({"x": numpy.ones(3)}) == archive({"x": numpy.ones(3)})


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("fc.weight.grad", "fc.weight.grad"),
        ("batch/0", "batch/0"),
        ("/etc/passwd", "_/etc/passwd"),
        ("../../up", "_/_/up"),
        ("a\\..\\b", "a_.._b"),
        ("c:x\n", "c_x_"),
        ("", "_"),
        ("größe", "gr__e"),
    ],
)
def test_a_key_never_leads_anywhere(name, key, tmp_path):
    assert archive_key(name) == key
    zipfile.ZipFile(io.BytesIO(archive({key: numpy.ones(1)}))).extractall(tmp_path / "in")
    assert (tmp_path / "in" / f"{key}.npy").resolve().is_relative_to(tmp_path / "in")


def test_two_names_with_one_key_are_refused():
    with pytest.raises(ValueError, match="Dump: 'a:b' and 'a;b' would both be 'a_b' in the file"):
        archive_keys("Dump", ["a:b", "a;b"])
