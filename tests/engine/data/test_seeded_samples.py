from __future__ import annotations

import random
import re
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, Dataset, IterableDataset, Subset

from hookpoint.core.errors import BadLoop
from hookpoint.engine.data.rng import seed_all
from hookpoint.engine.data.seeded_samples import SeededSamples, seeded_samples_of

SAMPLES = 6


class Noise(Dataset):
    """Returns its index, and a number from each generator."""

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        return torch.tensor([float(index), random.random(), np.random.rand(), torch.rand(1).item()], dtype=torch.float64)

    def __getitems__(self, indices):
        raise AssertionError("samples that are read together would share one seed")


def read(dataset, epoch=0, **options):
    dataset.set_epoch(epoch)
    return torch.cat(list(DataLoader(dataset, batch_size=2, **options))).tolist()


def test_a_sample_depends_on_seed_epoch_and_index():
    data = SeededSamples(Noise(), seed=1)
    seed_all(1)
    first = read(data)
    seed_all(2)
    assert read(data) == first
    numbers = [number for row in first for number in row[1:]]
    assert len(set(numbers)) == len(numbers)
    for other in (read(data, epoch=1), read(SeededSamples(Noise(), seed=2))):
        assert not set(numbers) & {number for row in other for number in row[1:]}


def test_int_numpy_and_tensor_indices_give_the_same_sample():
    data = SeededSamples(Noise())
    assert data[3].tolist() == data[np.int64(3)].tolist() == data[torch.tensor(3)].tolist()


def test_a_string_index_gives_the_same_sample_in_every_process():
    class Named(Dataset):
        def __getitem__(self, name):
            return random.random()

    program = (
        "import random, torch\n"
        "from hookpoint.engine.data.seeded_samples import SeededSamples\n"
        "class Named(torch.utils.data.Dataset):\n"
        "    def __getitem__(self, name): return random.random()\n"
        "print(SeededSamples(Named(), seed=3)['a'])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=250)
    data = SeededSamples(Named(), seed=3)
    assert float(done.stdout) == data["a"] != data["b"]


def drawn():
    return [random.random(), np.random.randn(), torch.rand(1).item()]


@pytest.mark.parametrize("fails", [False, True])
def test_the_generators_are_restored_after_each_sample(fails):
    class Failing(Noise):
        def __getitem__(self, index):
            super().__getitem__(index)
            if fails:
                raise ValueError("inside")

    data = SeededSamples(Failing())
    seed_all(4)
    np.random.randn()  # which draws two and keeps one
    expected = [drawn(), drawn()]
    seed_all(4)
    np.random.randn()
    assert drawn() == expected[0]
    if fails:
        with pytest.raises(ValueError, match="inside"):
            data[0]
    else:
        data[0]
    assert drawn() == expected[1]


@pytest.mark.parametrize("workers", [1, 2])
def test_workers_return_the_same_samples(workers):
    data = SeededSamples(Noise(), seed=1)
    expected = [read(data, epoch) for epoch in (0, 1)]
    assert [read(data, epoch, num_workers=workers) for epoch in (0, 1)] == expected


def test_persistent_workers_see_the_epoch():
    data = SeededSamples(Noise(), seed=1)
    expected = [read(data, epoch) for epoch in (1, 2, 3)]
    loader = DataLoader(data, batch_size=2, num_workers=2, persistent_workers=True)
    seen = []
    for epoch in (1, 2, 3):
        data.set_epoch(epoch)
        seen.append(torch.cat(list(loader)).tolist())
    assert seen == expected


SPAWNED = """
import random, torch
from torch.utils.data import DataLoader, Dataset
from hookpoint.engine.data.seeded_samples import SeededSamples

class Noise(Dataset):
    def __len__(self): return 4
    def __getitem__(self, index): return torch.tensor([index, random.random()], dtype=torch.float64)

if __name__ == "__main__":
    data = SeededSamples(Noise(), seed=1)
    loader = DataLoader(data, num_workers=1, persistent_workers=True, multiprocessing_context="spawn")
    for epoch in (1, 2):
        data.set_epoch(epoch)
        assert torch.cat(list(loader)).tolist() == torch.cat(list(DataLoader(data))).tolist(), epoch
"""


@pytest.mark.slow
def test_spawned_workers_see_the_epoch(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SPAWNED)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr


def test_seeded_samples_are_found_inside_other_datasets():
    first, second = SeededSamples(Noise()), SeededSamples(Noise())
    assert list(seeded_samples_of(first)) == [first]
    assert list(seeded_samples_of(Subset(Subset(first, [0]), [0]))) == [first]
    assert list(seeded_samples_of(ConcatDataset([first, Subset(second, [0])]))) == [first, second]
    assert list(seeded_samples_of(Noise())) == list(seeded_samples_of(None)) == []


def test_data_without_an_index_raises():
    class Stream(IterableDataset):
        def __iter__(self):
            yield 1

    message = (
        "SeededSamples needs a dataset with __getitem__ and __len__, got Stream.\n"
        "  seed      an IterableDataset inside its __iter__"
    )
    with pytest.raises(BadLoop, match=f"^{re.escape(message)}$"):
        SeededSamples(Stream())
    with pytest.raises(BadLoop, match="got int"):
        SeededSamples(3)


def test_the_dataset_keeps_its_length_and_is_read_one_sample_at_a_time():
    assert len(SeededSamples(Noise())) == SAMPLES
    assert not hasattr(SeededSamples(Noise()), "__getitems__")
