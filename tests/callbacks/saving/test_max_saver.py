from __future__ import annotations

from hookpoint.callbacks import MaxSaver, MinSaver


def test_it_is_min_saver_the_other_way_round(train_on_disk, disk):
    train_on_disk(
        [MaxSaver("score"), MinSaver("score", filename="least")], [{"score": value} for value in (1.0, 2.0, 0.5, 2.0)]
    )
    assert [step for step, tags in disk.saved if "best-score" in tags] == [3, 6]
    assert [step for step, tags in disk.saved if "best-least" in tags] == [3, 9]


def test_filename_is_its_second_argument_as_in_tensorpack():
    assert MaxSaver("score", "model").tag == "best-model"
