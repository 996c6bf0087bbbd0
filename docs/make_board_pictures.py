"""Take screenshots of the board for docs/images: `make board-pictures`.

The script trains five small models first. It takes a minute in total. It needs chromium and playwright, as
`make test-board` does. No test runs this script.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
IMAGES = Path(__file__).with_name("images")
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync"]
DESKTOP, PHONE = {"width": 1400, "height": 850}, {"width": 390, "height": 844}
MAX_BYTES = 200_000
SPIKE = 120
RUNS = {
    "adam-0.003": (0.003, 2, -10),
    "adam-0.01": (0.01, 2, SPIKE),
    "adam-0.03": (0.03, 2, -10),
    "deep-0.003": (0.003, 4, -10),
    "deep-0.01": (0.01, 4, -10),
}

TRAINING = """
import json, sys
import torch
from torch import nn
from hookpoint import Callback, Runner
from hookpoint import callbacks as cb

torch.set_num_threads(1)


class Spike(Callback):
    def __init__(self, step, rate):
        super().__init__()
        self.step, self.rate = step, rate

    def on_step_begin(self, run):
        if run.step in (self.step, self.step + 6):
            run.hyper["lr"] = self.rate * (10 if run.step == self.step else 1)


for name, (rate, depth, spike) in json.loads(sys.argv[2]).items():
    torch.manual_seed(0)
    inputs = torch.randn(2000, 12)
    targets = (inputs[:, :3].prod(dim=1) > 0).long()
    layers = [layer for _ in range(depth - 1) for layer in (nn.Linear(48, 48), nn.ReLU())]
    model = nn.Sequential(nn.Linear(12, 48), nn.ReLU(), *layers, nn.Linear(48, 2))
    callbacks = [Spike(spike, rate), cb.ModelSaver(max_to_keep=2), cb.MinSaver("val_loss"), cb.ThroughputTracker()]
    runner = Runner(
        model, torch.optim.Adam(model.parameters(), lr=rate), nn.CrossEntropyLoss(), workdir=f"{sys.argv[1]}/{name}", name=name,
        log_every=1, seed=0, config={"learning_rate": rate, "depth": depth, "batch_size": 64, "optimizer": "adam"},
        metrics={"accuracy": lambda out, y: (out.argmax(1) == y).float().mean()}, callbacks=callbacks, extra_callbacks=[],
    )
    runner.fit((inputs[:1600], targets[:1600]), (inputs[1600:], targets[1600:]), epochs=12, batch_size=64)
"""


@contextmanager
def serving(folder: Path, cache: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    command = [sys.executable, "-m", "hookpoint", "board", str(folder), "--port", "0", "--no-open"]
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        try:
            yield process, process.stdout.readline().strip()
        finally:
            process.terminate()


def write_many(folder: Path) -> None:
    """Write the folders of 1,000 small runs, with made-up values."""
    for number in range(1_000):
        run = folder / f"sweep-{number // 100}" / f"run-{number:04}"
        run.mkdir(parents=True)
        rate, depth = 10.0 ** -(number % 4), 2 + number % 5
        losses = [(1 + depth / 10) / (step * rate + 1) + number % 97 / 500 for step in range(1, 40)]
        clocks = [
            {"step": step, "iteration": step, "epoch": 1 + step // 10, "time": 1.79e9 + step, "at": "step"}
            for step in range(1, 40)
        ]
        lines = [{**clock, "loss": loss} for clock, loss in zip(clocks, losses, strict=True)]
        (run / "scalars.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        facts = {"format": 1, "name": run.name, "status": "failed" if number % 23 == 0 else "finished", "step": 39, "epoch": 4}
        best = {"loss": {"value": losses[-1], "step": 39, "mode": "min"}}
        config = {"learning_rate": rate, "depth": depth}
        more = {"epochs": 4, "elapsed_seconds": 60.0 + number, "best": best, "metrics": {"loss": losses[-1]}, "config": config}
        more["started"] = f"2026-11-{1 + number % 17:02}T{number % 24:02}:{number % 60:02}:00+00:00"
        (run / "run.json").write_text(json.dumps({**facts, **more}))


def train(folder: Path) -> None:
    folder.mkdir()
    command = [sys.executable, "-c", TRAINING, str(folder), json.dumps(RUNS)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def ready(page: Any) -> None:
    page.wait_for_selector("body[data-ready='1']")
    page.wait_for_selector(".chart[data-metric='loss'][data-exact='true'] canvas")
    page.wait_for_timeout(1_500)


def compared(page: Any) -> None:
    ready(page)
    page.locator("#runs tr", has_text="adam-0.01").click()
    page.locator("#smoothing").fill("0.85")
    page.locator("[data-tab='callbacks']").click()
    page.locator("#compare").click()
    page.wait_for_selector("#differences tr[data-setting]")
    page.wait_for_timeout(1_000)
    pointed(page)


def pointed(page: Any) -> None:
    """Move the pointer to the spike in the loss chart."""
    box = page.locator(".chart[data-metric='loss'] .u-over").bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.41, box["y"] + 60)
    page.wait_for_timeout(300)


def first_view(page: Any) -> None:
    ready(page)
    page.locator("#runs tr", has_text="adam-0.01").click()
    page.locator("[data-tab='events']").click()
    page.wait_for_timeout(1_000)


def many(page: Any) -> None:
    page.wait_for_selector("body[data-ready='1']")
    page.locator("button.sort", has_text="Best").click()
    page.locator("button:text-is('Best 5')").click()
    page.locator("#columns").click()
    page.select_option("#group", "depth")
    page.locator("#columns").click()
    page.wait_for_selector(".chart[data-metric='loss'][data-lines='5'] canvas")
    page.wait_for_timeout(1_000)


def main() -> None:
    from PIL import Image
    from playwright.sync_api import sync_playwright

    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as name, sync_playwright() as driver:
        place = Path(name)
        train(place / "runs")
        write_many(place / "many")
        (place / "none").mkdir()
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)

        def picture(
            file: str, folder: str, act: Callable[[Any], None], *, theme: str = "light", size: Any = DESKTOP, end: bool = False
        ) -> None:
            with serving(place / folder, place / "cache") as (process, url):
                page = browser.new_page(viewport=size, color_scheme=theme, reduced_motion="reduce")
                page.goto(url)
                act(page)
                if end:
                    process.terminate()
                    process.wait()
                    page.wait_for_selector("#lost")
                page.screenshot(path=IMAGES / file)
                page.close()

        picture("board-light.png", "runs", compared)
        picture("board-dark.png", "runs", first_view, theme="dark")
        picture("board-phone.png", "runs", ready, size=PHONE)
        picture("board-empty.png", "none", lambda page: page.wait_for_selector("h1:has-text('No runs yet')"))
        picture("board-many.png", "many", many)
        picture("board-lost.png", "runs", first_view, end=True)
        browser.close()
    for image in sorted(IMAGES.glob("board-*.png")):
        Image.open(image).convert("RGB").quantize(255, dither=Image.Dither.NONE).save(image, optimize=True)
        print(f"{image.relative_to(ROOT)}  {image.stat().st_size:,} bytes")
        if image.stat().st_size > MAX_BYTES:
            raise SystemExit(f"{image.name} is too large for a README: the limit is {MAX_BYTES:,} bytes")


if __name__ == "__main__":
    main()
