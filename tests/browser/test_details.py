"""The details of a run: events, checkpoints, images and histograms."""

from __future__ import annotations

import struct
import zlib

import pytest

pytestmark = pytest.mark.slow  # needs a browser


def test_consecutive_saves_are_folded_into_one_line(page, serve, opened, row, write_run):
    facts = {"iteration": 1, "epoch": 1}
    saves = [
        {**facts, "step": step, "time": 1.79e9 + step, "event": "save", "path": f"checkpoints/step-{step}", "tags": ["model"]}
        for step in (1, 2, 3, 5)
    ]
    stop = {**facts, "step": 4, "time": 1.79e9 + 4, "event": "stop", "reason": "lunch"}
    write_run("mine", [row(step, loss=1.0) for step in range(10)], sorted([*saves, stop], key=lambda one: one["step"]))
    opened(page, serve(), "tab=events")
    page.wait_for_selector("#events > li")
    assert page.locator("#events > li").count() == 3
    fold = page.locator("#events .fold")
    assert fold.text_content() == "3 saves, steps 1 to 3"
    assert page.locator("#events li", has_text="saved step-2").count() == 0
    fold.click()
    page.wait_for_selector("#events li li:has-text('saved step-2')")
    assert page.locator("#events li li").count() == 3


def test_the_best_checkpoint_has_a_star(page, serve, opened, train_run):
    train_run()
    opened(page, serve(), "tab=checkpoints")
    page.wait_for_selector("#checkpoints .star")
    assert page.locator("#checkpoints .star").get_attribute("title") == "Best val_loss"
    assert "1.5" in page.locator("#checkpoints tr:has(.star)").first.text_content()


def png(width, height):
    """Return a red image."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = (b"\0" + b"\xff\0\0" * width) * height
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def test_images_and_histograms_are_shown(page, serve, opened, row, write_run):
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import HistogramProto, Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    folder = write_run("mine", [row(1, loss=1.0)])
    writer = EventFileWriter(str(folder / "tensorboard"))
    for step in (1, 2):
        image = Summary.Value(tag="digits", image=Summary.Image(encoded_image_string=png(8 * step, 4)))
        counts = HistogramProto(min=0, max=2, num=3, bucket_limit=[1.0, 2.0], bucket=[1.0, 2.0])
        histogram = Summary.Value(tag="weights", histo=counts)
        writer.add_event(Event(step=step, wall_time=float(step), summary=Summary(value=[image, histogram])))
    writer.close()
    opened(page, serve(), "tab=media")
    image = page.locator("#media img")
    image.wait_for()
    for _ in range(100):
        if image.evaluate("(one) => one.complete && one.naturalWidth"):
            break
        page.wait_for_timeout(50)
    assert image.evaluate("(one) => [one.naturalWidth, one.naturalHeight]") == [16, 4]
    page.locator("input[aria-label='Step of digits']").fill("0")
    page.wait_for_selector("#media img[alt='digits at step 1']")
    page.wait_for_selector("#media canvas[aria-label='Histogram of weights, 0 to 2']")
    drawn = (
        "(one) => one.getContext('2d').getImageData(0, 0, one.width, one.height).data.filter((v, i) => i % 4 === 3 && v).length"
    )
    share = page.locator("#media canvas").evaluate(drawn) / (600 * 140)
    assert 0.6 < share < 0.9  # half of the width at half the height, half at full height


def test_a_refused_validation_says_what_to_do(page, serve, opened, training):
    with training():
        opened(page, serve())
        page.locator("button[data-do='validate']:enabled").click(timeout=30_000)
        page.wait_for_selector("#answer.refused", timeout=30_000)
        assert "this run has no validation data: pass it to fit(train, val)" in page.locator("#answer").text_content()
