"""`quarl-edge plot`: a figure that is whole, says what it shows, and is the same again."""

import builtins
import importlib.util
import io
import json
import re
import warnings
from xml.etree import ElementTree

import pytest
from PIL import Image
from run_factory import make_run

from quarl_edge import figure as figure_module
from quarl_edge.cli import main
from quarl_edge.curves import make_curves
from quarl_edge.figure import draw
from quarl_edge.run_view import look_at_run


@pytest.fixture
def seeds(tmp_path):
    means = ((20.0, 200.0, 480.0), (25.0, 150.0, 490.0), (10.0, 300.0, 475.0))
    return [
        make_run(
            tmp_path / "runs", name=f"seed-{seed}", seed=seed, points=list(zip((100, 200, 300), found, strict=True))
        )
        for seed, found in enumerate(means)
    ]


def texts(svg):
    return re.findall(r"<text[^>]*>([^<]*)<", svg.decode())


def test_a_png_of_seeds_and_its_numbers(tmp_path, seeds, capsys):
    out = tmp_path / "curve.png"
    assert main(["plot", *(str(run.path) for run in seeds), "--out", str(out), "--format", "json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["figure"] == str(out)
    assert "95 % t-interval" in said["interval"]
    (curve,) = said["curves"]
    assert (curve["runs"], curve["env_steps"]) == (3, 300)
    assert curve["return_mean"] == pytest.approx((480 + 490 + 475) / 3)
    image = Image.open(out)
    assert image.format == "PNG"
    assert image.size[0] >= 1_000
    # Something was drawn in the colour of the first curve.
    assert (0, 114, 178) in {colour for _, colour in image.convert("RGB").getcolors(maxcolors=2**24)}


def test_an_svg_says_what_its_axes_lines_and_bands_are(seeds, tmp_path):
    other = make_run(tmp_path / "runs", name="other", hidden=(8,))
    further = make_run(tmp_path / "runs", name="further", env="Pendulum-v1", algorithm="ddpg", points=((1, -900.0),))
    views = [look_at_run(run.path) for run in (*seeds, other, further)]
    said = texts(draw(make_curves(views), kind="svg", title="a $title"))
    for text in ("a $title", "CartPole-v1", "Pendulum-v1", "goal 475", "ddpg (seed 0)"):
        assert text in said
    assert said.count("environment steps") == said.count("mean return of the int8 file") == 2
    assert any("3 seeds" in text for text in said)
    assert any("hidden=8 (seed 0)" in text for text in said)
    assert any("95 % t-interval of the mean over seeds" in text for text in said)


def test_any_name_of_an_environment_makes_a_figure_that_opens(tmp_path, recwarn):
    run = make_run(tmp_path, name="mine", env="<&\x00\x1b]$ 環境 \n" + "x" * 200)
    curves = make_curves([look_at_run(run.path)])
    ElementTree.fromstring(draw(curves, kind="svg"))  # noqa: S314 - ours
    assert Image.open(io.BytesIO(draw(curves, kind="png"))).size[0] >= 1_000
    assert not recwarn.list


def test_the_same_runs_give_the_same_file(seeds):
    curves = make_curves([look_at_run(run.path) for run in seeds])
    for kind in ("svg", "png"):
        assert draw(curves, kind=kind) == draw(curves, kind=kind)


def test_a_goal_that_the_runs_do_not_have(tmp_path, capsys):
    run = make_run(tmp_path, name="mine", goal_return=None)
    out = tmp_path / "c.svg"
    assert main(["plot", str(run.path), "--out", str(out), "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["curves"][0]["goal_return"] is None
    assert not any("goal" in text for text in texts(out.read_bytes()))
    assert main(["plot", str(run.path), "--out", str(out), "--goal", "-12.5"]) == 0
    assert "goal -12.5" in texts(out.read_bytes())
    assert main(["plot", str(run.path), "--out", str(out), "--goal", "nan"]) == 2


def test_runs_by_name_under_a_directory(seeds, tmp_path, capsys):
    out = tmp_path / "c.svg"
    assert main(["plot", "seed-0", "seed-1", "seed-0", "--runs", str(tmp_path / "runs"), "--out", str(out)]) == 0
    assert out.read_bytes().startswith(b"<?xml")
    shown = capsys.readouterr().out
    # One that is named twice is one run.
    assert "dqn (2 seeds)" in shown
    assert "95 % t-interval" in shown


def test_what_has_nothing_to_draw_is_left_out_and_said(seeds, tmp_path, capsys):
    empty = make_run(tmp_path / "runs", name="empty", points=())
    damaged = make_run(tmp_path / "runs", name="damaged")
    (damaged.path / "config.json").write_text("{")
    out = tmp_path / "c.png"
    assert main(["plot", *(str(run.path) for run in (seeds[0], empty, damaged)), "--out", str(out)]) == 0
    err = capsys.readouterr().err
    assert "empty has no judgement" in err
    assert "run configuration is damaged" in err
    out.unlink()
    assert main(["plot", str(empty.path), str(damaged.path), "--out", str(out)]) == 72
    assert not out.exists()


@pytest.mark.parametrize(
    ("out", "says"), [("c.pdf", ".png or .svg"), ("none/c.png", "mkdir -p"), ("d.png", "directory")]
)
def test_a_figure_that_cannot_be_is_refused_before_anything_is_read(tmp_path, capsys, out, says):
    (tmp_path / "d.png").mkdir()
    assert main(["plot", "no-such-run", "--out", str(tmp_path / out)]) == 2
    assert says in capsys.readouterr().err


def test_a_figure_that_nobody_could_read_is_refused(seeds, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(figure_module, "MAX_CURVES", 1)
    other = make_run(tmp_path / "runs", name="other", hidden=(8,))
    assert main(["plot", str(seeds[0].path), str(other.path), "--out", str(tmp_path / "c.png")]) == 2
    assert "runs compare" in capsys.readouterr().err


def test_without_matplotlib_the_extra_is_named(tmp_path, capsys, monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name == "matplotlib" else found(name, *a))
    assert main(["plot", "x", "--out", str(tmp_path / "c.png")]) == 80
    assert "quarl-edge[plot]" in capsys.readouterr().err


def test_no_window_system_is_looked_for(seeds, monkeypatch):
    real = builtins.__import__

    def guarded(name, *rest, **more):
        assert "pyplot" not in name
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", guarded)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        data = draw(make_curves([look_at_run(seeds[0].path)]), kind="png")
    assert Image.open(io.BytesIO(data)).format == "PNG"
