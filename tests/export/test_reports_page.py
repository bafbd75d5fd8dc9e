"""The report page: what is in it, and how a real browser shows it on a desk, on a phone, and in the dark."""

import io
import json
import re

import numpy as np
import pytest
from headless_browser import measure, screenshot
from PIL import Image
from policy_factory import mlp, rows
from report_pairs import PAIRS, compared, pair

from quarl_device.errors import ModelFileError, UsageError
from quarl_export.calibration import CalibrationData
from quarl_export.checks.report import CheckResult
from quarl_export.export_report import write_export_report
from quarl_export.pipeline import ExportOptions, build_file
from quarl_export.reports import compare_files, write_report
from quarl_export.reports.charts import _ticks, histogram, scatter
from quarl_export.reports.page import decibel, number, render_page
from quarl_export.schemes import SchemeOptions

PHONE, DESK = 360, 1280


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    return write_report(compared("dueling"), tmp_path_factory.mktemp("report"))


@pytest.fixture(scope="module")
def on_a_desk(page, tmp_path_factory):
    return measure(page, tmp_path_factory.mktemp("desk"), width=DESK)


@pytest.fixture(scope="module")
def on_a_phone(page, tmp_path_factory):
    return measure(page, tmp_path_factory.mktemp("phone"), width=PHONE, dark=True)


def test_the_browser_shows_every_part(on_a_desk):
    assert on_a_desk["title"] == "dueling_int8.tflite against dueling_float.tflite"
    for heading in ("Findings", "Outputs, float against int8", "Error by layer", "All figures"):
        assert heading in on_a_desk["headings"]
    layers = len(compared("dueling").layers)
    assert on_a_desk["rows"] == layers
    assert len(on_a_desk["bars"]) == layers
    assert on_a_desk["points"] > 100


def test_every_chart_is_drawn(on_a_desk):
    histograms = sum((layer.weights is not None) + (layer.grid is not None) for layer in compared("dueling").layers)
    assert len(on_a_desk["charts"]) == histograms + 1
    assert len(on_a_desk["paths"]) == histograms
    assert all(width > 100 and height > 60 for width, height in on_a_desk["charts"])
    assert all(width > 100 and height > 20 for width, height in on_a_desk["paths"])


@pytest.fixture(scope="module")
def built():
    policy = mlp()
    data = CalibrationData.checked(policy.contract, rows(policy, 256), source="test")
    # So few bits that some check fails.
    coarse = ExportOptions(scheme=SchemeOptions(weight_bits=2), force=True)
    return {
        "passed": build_file(policy, ExportOptions(), data=data),
        "forced": build_file(policy, coarse, data=data),
    }


@pytest.mark.parametrize("name", ["passed", "forced"])
def test_an_export_shows_its_checks_first(built, name, tmp_path):
    """Every check with its verdict, what it measured and may be, as the command tells them."""
    checks = built[name].checks
    page = write_export_report(built[name], tmp_path / "page", model=tmp_path / "model.tflite")
    seen = measure(page, tmp_path, width=PHONE)
    assert seen["checksTop"] < seen["findingsTop"]
    assert seen["wide"] == []
    assert seen["checks"] == [
        [
            f"{check.code} {check.name}",
            check.standing,
            "–" if check.value is None else f"{check.value:.4g}",
            "–" if check.limit is None else f"{'≥' if check.code in ('Q05', 'Q10') else '≤'} {check.limit:.4g}",
            check.message,
        ]
        for check in checks
    ]
    standings = [check.standing for check in checks]
    assert {"passed", "not judged"} <= set(standings)
    assert ("FAILED" in standings) is (name == "forced")
    # Who looks for what failed finds it by its colour.
    colours = dict(zip(standings, seen["verdicts"], strict=True))
    assert len(set(colours.values())) == len({standing for standing in colours if standing != "advisory"})
    assert ("Written with --force although" in page.read_text()) is (name == "forced")
    beside = json.loads((page.parent / "compare.json").read_text())["checks"]
    assert [each["code"] for each in beside] == [f"Q{n:02}" for n in range(1, 14)]


def test_a_comparison_has_no_checks_to_show(on_a_desk, page):
    assert on_a_desk["checks"] == []
    assert "checks" not in json.loads((page.parent / "compare.json").read_text())


def test_what_a_check_says_is_text():
    evil = CheckResult(code="Q01", passed=False, message="<script>alert(1)</script>", value=-0.5, limit=0.0)
    text = render_page(compared("arm"), [evil])
    assert "<script" not in text
    assert "<td>−0.5</td><td>≤ 0</td>" in text


def test_longer_bars_are_smaller_errors(on_a_desk):
    snr = [layer.errors.snr_db for layer in compared("dueling").layers]
    assert np.argsort(snr).tolist() == np.argsort(on_a_desk["bars"]).tolist()


def test_it_loads_and_runs_nothing(on_a_desk, page):
    assert on_a_desk["scripts"] == on_a_desk["loads"] == on_a_desk["requests"] == 0
    text = page.read_text()
    assert "http://" not in text
    assert "https://" not in text
    assert "default-src 'none'" in text


def test_it_fits_a_phone(on_a_phone):
    assert on_a_phone["view"] == PHONE
    assert on_a_phone["width"] <= PHONE
    assert on_a_phone["wide"] == []
    # Letters in charts are scaled with them: still to be read.
    assert on_a_phone["text"] >= 10
    assert all(width > 200 for width, _ in on_a_phone["charts"])


def test_it_is_dark_in_the_dark(on_a_desk, on_a_phone):
    def brightness(colour):
        return sum(map(int, re.findall(r"\d+", colour)[:3])) / 3

    assert brightness(on_a_desk["background"]) > 200 > 100 > brightness(on_a_desk["ink"])
    assert brightness(on_a_phone["background"]) < 60 < 180 < brightness(on_a_phone["ink"])


def test_the_picture_is_no_blank_sheet(page, tmp_path):
    picture = Image.open(io.BytesIO(screenshot(page, tmp_path, width=1000, height=1400))).convert("RGB")
    pixels = np.asarray(picture).reshape(-1, 3)
    colours, counts = np.unique(pixels, axis=0, return_counts=True)
    assert picture.size == (1000, 1400)
    assert len(colours) > 100
    assert counts.max() / counts.sum() < 0.95
    blue = (pixels[:, 2].astype(int) - pixels[:, 0]) > 60
    assert blue.sum() > 2000  # bars and points


@pytest.mark.parametrize("name", PAIRS)
def test_every_pair_makes_a_whole_page(name):
    text = render_page(compared(name))
    assert text.startswith("<!doctype html>")
    for tag in ("section", "svg", "figure", "article", "div", "span", "p", "ul", "li", "table"):
        assert len(re.findall(rf"<{tag}[ >]", text)) == text.count(f"</{tag}>"), tag
    assert "nan" not in text.lower()


def test_the_figures_lie_beside_it(page):
    data = json.loads((page.parent / "compare.json").read_text())
    assert data["action_agreement"] == compared("dueling").agreement.share


def test_names_of_strangers_are_text_and_nothing_else(tmp_path):
    """A file's name, and names in it, may hold anything."""
    evil = tmp_path / "<img src=x onerror=alert(1)>.tflite"
    evil.write_bytes(pair("arm")[1].read_bytes())
    text = render_page(compare_files(pair("arm")[0], evil, rows=8))
    assert "<img" not in text
    assert "&lt;img src=x" in text


def test_writing_again_replaces_whole_files(tmp_path):
    folder = tmp_path / "a" / "b"
    first = write_report(compared("arm"), folder)
    assert write_report(compared("qat"), folder) == first
    assert "qat_int8" in first.read_text()
    assert sorted(path.name for path in folder.iterdir()) == ["compare.json", "index.html"]


def test_a_file_in_the_way_and_a_place_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(UsageError, match="expected a directory"):
        write_report(compared("arm"), tmp_path / "file")
    with pytest.raises(ModelFileError, match="cannot be written"):
        write_report(compared("arm"), tmp_path / "file" / "below")
    assert (tmp_path / "file").read_text() == "mine"


def test_dimensions_of_an_observation_are_drawn_by_the_steps_they_span(tmp_path):
    rng = np.random.default_rng(0)
    seen = rng.uniform(-0.9, 0.9, (40, 6)).astype(np.float32) * [1, 1, 1, 0.02, 1, 1]
    seen[:2, 1] = 5.0
    np.savez(tmp_path / "seen.npz", observation=seen)
    text = render_page(compare_files(*pair("dueling"), observations=tmp_path / "seen.npz"))
    assert re.search(r'bar low"><span class="name" title="dim 3">dim 3</span>.*?>\d steps<', text)
    assert re.search(r'bar low"><span class="name" title="dim 1, 5\.0% out">', text)


def test_an_exact_pair_says_so():
    _, int8 = pair("dueling")
    text = render_page(compare_files(int8, int8, rows=8))
    assert "exact" in text
    assert "Nothing here needs a mend." in text


def test_histogram_draws_equal_steps_once():
    drawn = histogram([0, 5, 5, 0], None, labels=[(0.0, "<0>")], what='a "name"')
    assert drawn.count("V") == 4  # up, down, and the frame's ends
    assert "&lt;0&gt;" in drawn
    assert 'aria-label="a &quot;name&quot;"' in drawn
    assert histogram([0, 0], [0, 0], labels=[], what="nothing")


def test_scatter_draws_every_disagreement():
    mine = np.zeros((5000, 2))
    agrees = [row % 100 != 0 for row in range(5000)]
    drawn = scatter(mine, mine + 1, agrees, what="x")
    assert drawn.count("l6 6m0-6l-6 6") == 100
    assert drawn.count("<circle") == 3000


@pytest.mark.parametrize(("low", "high"), [(0, 1), (-3.2, 1.1), (1e-9, 2e-9), (-1e6, 1e6), (999.5, 1000.5)])
def test_ticks_are_few_and_round(low, high):
    ticks = [tick for tick in _ticks(low, high) if low <= tick <= high]
    assert 2 <= len(ticks) <= 8


def test_figures_for_people():
    assert number(-0.012345) == "−0.0123"
    assert number(float("inf")) == "∞"
    assert decibel(float("inf")) == "exact"
    assert decibel(-3.04) == "−3.0 dB"
