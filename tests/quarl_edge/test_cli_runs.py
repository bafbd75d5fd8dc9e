"""`quarl-edge runs`: tables for people, objects for programs, and a damaged run is a row."""

import json
import subprocess
import sys

from run_factory import keep_policy, make_run

from quarl_edge.cli import main
from quarl_edge.cli.runs import size_text


def said(capsys, *words):
    assert main([*words, "--format", "json"]) == 0
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def test_ls_shows_every_run_and_what_is_damaged(tmp_path, capsys):
    keep_policy(make_run(tmp_path, name="good", seed=3), 61.25)
    (make_run(tmp_path, name="bad").path / "config.json").write_text("{")
    assert main(["runs", "ls", "--runs", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    good = next(line for line in out.splitlines() if "good" in line).split()
    assert good[:6] == ["good", "CartPole-v1", "dqn", "3", "ended:", "budget"]
    assert "61.2" in good
    assert "damaged" in next(line for line in out.splitlines() if line.strip().startswith("bad"))
    assert "damaged: bad: run configuration is damaged" in out
    runs = {run["run"]: run for run in said(capsys, "runs", "ls", "--runs", str(tmp_path))["runs"]}
    assert runs[str(tmp_path / "good")]["int8_return_mean"] == 61.25
    assert runs[str(tmp_path / "good")]["state"] == "ended"
    assert runs[str(tmp_path / "bad")]["env"] is None
    assert len(runs[str(tmp_path / "bad")]["damage"]) == 1


def test_ls_of_nothing(tmp_path, capsys):
    assert main(["runs", "ls", "--runs", str(tmp_path)]) == 0
    assert "quarl-edge train" in capsys.readouterr().out
    assert main(["runs", "ls", "--runs", str(tmp_path / "none")]) == 72
    assert capsys.readouterr().err.count("\n") == 1


def test_a_name_cannot_colour_or_move_the_terminal(tmp_path, capsys):
    make_run(tmp_path, name="[red]x[red]\x1b[2J")
    assert main(["runs", "ls", "--runs", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "[red]x[red]" in out


def test_show_tells_settings_judgements_checkpoints_and_the_policy(tmp_path, capsys):
    run = make_run(tmp_path, name="mine", hidden=(8, 16))
    keep_policy(run, 61.5)
    (run.checkpoints / "ckpt-000000000200").mkdir(parents=True)
    assert main(["runs", "show", "mine", "--runs", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    for part in ("8,16", "61.5 (goal 475)", "b" * 64, "200 (0 B)", "the last 2 of 2", "1, training 2.0 s"):
        assert part in out
    shown = said(capsys, "runs", "show", str(run.path))
    assert shown["settings_changed"]["hidden"]["run"] == [8, 16]
    assert shown["policy_sha256"] == "b" * 64
    assert [(each["env_steps"], each["return_mean"]) for each in shown["judgements"]] == [(100, 20.0), (200, 60.0)]
    assert shown["checkpoints"] == [{"name": "ckpt-000000000200", "env_steps": 200, "size_bytes": 0}]


def test_show_of_a_damaged_run_shows_the_rest(tmp_path, capsys):
    run = make_run(tmp_path, name="mine")
    (run.path / "config.json").write_text("[]")
    assert main(["runs", "show", "mine", "--runs", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "damaged" in out
    assert "60.0" in out
    assert main(["runs", "show", "none", "--runs", str(tmp_path)]) == 72


def test_compare_puts_returns_and_differing_settings_side_by_side(tmp_path, capsys):
    make_run(tmp_path, name="one", seed=0)
    make_run(tmp_path, name="two", seed=1, hidden=(8,), points=((100, 30.0), (300, 90.0)))
    assert main(["runs", "compare", "one", "two", "--runs", str(tmp_path)]) == 0
    rows = {line.split("  ")[1]: line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("  ")}
    assert rows["best int8 return"][-2:] == ["60.0", "90.0"]
    assert rows["seed"][-2:] == ["0", "1"]
    assert rows["hidden"][-1] == "8"
    assert "learning_rate" not in rows
    shown = said(capsys, "runs", "compare", "one", "two", "--runs", str(tmp_path))
    assert [run["last_return_mean"] for run in shown["runs"]] == [60.0, 90.0]
    assert shown["settings"]["seed"] == [0, 1]
    assert shown["settings"]["hidden"][1] == [8]


def test_compare_with_a_damaged_run_says_so(tmp_path, capsys):
    make_run(tmp_path, name="one")
    (make_run(tmp_path, name="two").path / "config.json").unlink()
    assert main(["runs", "compare", "one", "two", "--runs", str(tmp_path)]) == 0
    assert "damaged: two:" in capsys.readouterr().out


def test_one_run_is_none_to_compare(tmp_path, capsys):
    make_run(tmp_path, name="one")
    assert main(["runs", "compare", "one", "--runs", str(tmp_path)]) == 2
    assert "runs show" in capsys.readouterr().err


def test_runs_and_their_curves_are_looked_at_without_tensorflow(tmp_path):
    make_run(tmp_path, name="mine")
    code = (
        "import sys\nsys.modules['tensorflow'] = None\nfrom quarl_edge.cli import main\n"
        "root = ['--runs', sys.argv[1]]\n"
        "codes = [main(['runs', 'ls', *root]), main(['runs', 'show', 'mine', *root])]\n"
        "codes.append(main(['plot', 'mine', '--out', sys.argv[1] + '/c.svg', *root]))\n"
        "sys.exit(any(codes))\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


def test_sizes():
    assert [size_text(size) for size in (0, 999, 1_000, 2_500_000, 3_000_000_000)] == [
        "0 B", "999 B", "1.0 kB", "2.5 MB", "3.0 GB"
    ]  # fmt: skip
