from __future__ import annotations

from hookpoint.callbacks import MaxSaver, MinSaver


def test_max_saver_mirrors_min_saver(train_on_disk, disk):
    train_on_disk(
        [MaxSaver("score"), MinSaver("score", filename="least")], [{"score": value} for value in (1.0, 2.0, 0.5, 2.0)]
    )
    assert [step for step, tags in disk.saved if "best-score" in tags] == [3, 6]
    assert [step for step, tags in disk.saved if "best-least" in tags] == [3, 9]


def test_filename_is_the_second_argument_as_in_tensorpack():
    assert MaxSaver("score", "model").tag == "best-model"
