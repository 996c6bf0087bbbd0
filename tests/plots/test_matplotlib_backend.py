from __future__ import annotations

import subprocess
import sys
from math import inf, nan
from xml.etree import ElementTree

import matplotlib
import pytest
from PIL import Image

from hookpoint.plots.figure_layout import PlotOptions, figure_of
from hookpoint.plots.matplotlib_backend import COLOURS, NoPictures, NoSuchFormat, columns_of, draw


def figure(*subjects, **options):
    return figure_of(subjects, PlotOptions(**options), columns=columns_of(None))


def colours(path):
    """Return the number of pixels of an image by colour."""
    with Image.open(path) as picture:
        counts = picture.convert("RGB").getcolors(maxcolors=2**24)
    return {"#{:02X}{:02X}{:02X}".format(*colour): count for count, colour in counts}


@pytest.fixture
def run(values, subject):
    loss, val = values("loss", [8.0, 4.0, 2.0, 1.0], stride=10), values("val_loss", [7.0, 3.0], "epoch", stride=20)
    return subject(loss, val, values("lr", [0.1, 0.001]), about="finished", modes={"val_loss": "min"})


def test_a_png_has_double_resolution_and_the_colours_of_its_curves(run, tmp_path):
    draw(figure(run), tmp_path / "a.png", width=640, height=300)
    with Image.open(tmp_path / "a.png") as picture:
        assert (picture.size, picture.format) == ((1280, 600), "PNG")
        assert picture.info.keys() <= {"dpi"}
    found = colours(tmp_path / "a.png")
    assert found[COLOURS[0]] > 200
    assert found[COLOURS[1]] > 200
    assert COLOURS[2] not in found
    assert found["#FFFFFF"] > 0.8 * 1280 * 600


def test_panels_of_a_narrow_image_are_stacked(run, tmp_path):
    draw(figure(run), tmp_path / "a.png", width=250, height=200)
    with Image.open(tmp_path / "a.png") as picture:
        assert picture.width == 500
        assert picture.height > 2 * 2 * 130


def test_each_run_has_its_own_colour(run, tmp_path):
    draw(figure(*[run] * 3, metrics=["loss"]), tmp_path / "a.png")
    assert all(colours(tmp_path / "a.png").get(colour, 0) > 100 for colour in COLOURS[:3])


def test_a_spike_among_many_values_is_visible(values, subject, tmp_path):
    numbers = [0.5] * 200_000
    numbers[123_456] = 9.0
    draw(figure(subject(values("a", numbers))), tmp_path / "a.png", width=400, height=300)
    with Image.open(tmp_path / "a.png") as picture:
        top = picture.convert("RGB").crop((0, 0, 800, 300))
    assert COLOURS[0] in {"#{:02X}{:02X}{:02X}".format(*colour) for _, colour in top.getcolors(maxcolors=2**20)}


@pytest.mark.parametrize("kind", ["png", "svg", pytest.param("pdf", marks=pytest.mark.slow)])
def test_the_same_figure_gives_the_same_bytes(run, tmp_path, kind):
    for name in ("a", "b"):
        draw(figure(run), tmp_path / f"{name}.{kind}")
    assert (tmp_path / f"a.{kind}").read_bytes() == (tmp_path / f"b.{kind}").read_bytes()
    assert len(list(tmp_path.iterdir())) == 2


def test_an_svg_has_the_given_size_and_no_external_references(run, tmp_path):
    draw(figure(run), tmp_path / "a.svg", width=640, height=300)
    root = ElementTree.parse(tmp_path / "a.svg").getroot()
    assert (root.tag, root.get("viewBox")) == ("{http://www.w3.org/2000/svg}svg", "0 0 460.8 216")  # 72 points per inch
    links = [value for node in root.iter() for key, value in node.attrib.items() if key.endswith("href")]
    assert links
    assert all(link.startswith("#") for link in links)
    assert COLOURS[0].lower() in (tmp_path / "a.svg").read_text()


def test_a_pdf_file_is_a_pdf(run, tmp_path):
    draw(figure(run), tmp_path / "a.pdf")
    assert (tmp_path / "a.pdf").read_bytes().startswith(b"%PDF")


ODD = {
    "one value": [0.3],
    "two values": [0.3, 0.2],
    "nothing finite": [nan, inf],
    "constant": [0.5] * 5,
    "zero": [0.0] * 5,
    "huge": [1e30, -2e299, 1e308],
    "tiny": [1e-30, 2e-310, 5e-31],
    "both": [1e-12, 1e12],
}


@pytest.mark.thin(9)
@pytest.mark.parametrize("log", [True, False])
@pytest.mark.parametrize("numbers", ODD.values(), ids=ODD)
def test_odd_values_are_drawn_without_a_warning(values, subject, tmp_path, numbers, log):
    draw(figure(subject(values("loss", numbers), modes={"loss": "min"}), log=log), tmp_path / "a.png")
    assert len(colours(tmp_path / "a.png")) > 10


HOSTILE = "_$\\frac{a}_b$ [red]<b>&amp; \x1b[31m\x00 {x} %s \u202e 漢字 \N{PILE OF POO}" + "long" * 100


def test_names_are_not_parsed_as_mathtext_or_markup(values, subject, tmp_path):
    runs = [
        subject(values(HOSTILE, [1.0, 2.0]), values(f"val_{HOSTILE}", [1.0]), name=f"{HOSTILE}{number}", about=HOSTILE)
        for number in range(13)
    ]
    for some in (runs, runs[:1]):
        draw(figure(*some), tmp_path / "a.svg")
        ElementTree.parse(tmp_path / "a.svg")


def test_drawing_ignores_and_preserves_matplotlib_settings(run, tmp_path):
    draw(figure(run), tmp_path / "a.png")
    with matplotlib.rc_context({"lines.linewidth": 9, "font.size": 30, "text.usetex": True}):
        before = dict(matplotlib.rcParams)
        draw(figure(run), tmp_path / "b.png")
        assert dict(matplotlib.rcParams) == before
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()


def test_a_failure_keeps_the_old_image_and_no_temporary_files(run, tmp_path):
    (tmp_path / "a.png").write_text("old")
    with pytest.raises(OSError, match="directory"):
        draw(figure(run), tmp_path / "none" / "a.png")
    (tmp_path / "b.png").mkdir()
    with pytest.raises(OSError, match=r"b\.png"):
        draw(figure(run), tmp_path / "b.png")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.png", "b.png"]


@pytest.mark.parametrize("name", ["a.gif", "a", ".png"])
def test_other_formats_raise(run, tmp_path, name):
    with pytest.raises(NoSuchFormat, match=r"unknown image format: '.*'; use \.png, \.svg or \.pdf"):
        draw(figure(run), tmp_path / name)


def test_without_matplotlib_the_error_says_what_to_install(run, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(NoPictures) as caught:
        draw(figure(run), tmp_path / "a.png")
    assert (
        str(caught.value) == "plots need matplotlib: pip install 'hookpoint[plot]'; hookpoint plot --terminal works without it"
    )


def test_drawing_needs_no_display_and_no_pyplot():
    program = "import sys, hookpoint.plots.matplotlib_backend as p, hookpoint.plots.figure_layout as c, tempfile, os\n"
    program += "s = c.figure_of([], c.PlotOptions(), columns=9)\n"
    program += "assert 'matplotlib' not in sys.modules\n"
    program += "p.draw(s, os.path.join(tempfile.mkdtemp(), 'a.png'))\n"
    program += "assert 'matplotlib.pyplot' not in sys.modules and 'tkinter' not in sys.modules"
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
