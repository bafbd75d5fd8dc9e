"""Every command and option that a message or a page names exists: advice that cannot be followed is worse than none."""

import argparse
import ast
import re
from pathlib import Path

import pytest
import typer

from quarl_device.commands import _parser
from quarl_edge.cli.app import app

ROOT = Path(__file__).parents[2]
PACKAGES = ("device/quarl_device", "export/quarl_export", "quarl_edge")
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
OPTION = re.compile(r"(?<![\w(-])--[a-z][a-z0-9_-]*")
COMMAND = re.compile(r"\b(quarl-edge|quarl-device) ([a-z][a-z-]*(?: [a-z][a-z-]*\b)?)([^\n`;]*)")
# Of programs that are not ours.
FOREIGN = {"--force-reinstall", "--logdir", "--system-site-packages"}
# Of this repository's processes to one another, not for people.
PRIVATE = {"--die-with-parent"}
# Of programs of their own, in those packages alone: the learner that a soak starts, the conformance suite of runtimes,
# pip, systemd and the programs that make users, on this computer and on a board.
OF_PACKAGES = {
    "soak": {"--journal", "--epoch", "--key"},
    "testing": {"--model", "--tolerance"},
    "deploy": {
        "--disable-pip-version-check", "--no-deps", "--no-cache-dir", "--no-build-isolation", "--retries",
        "--only-binary", "--python-version", "--implementation", "--platform", "--now", "--no-pager",
    },
    "install": {
        "--append", "--config", "--disable-pip-version-check", "--find-links", "--groups", "--home-dir", "--no-block",
        "--no-cache-dir", "--no-create-home", "--no-index", "--no-input", "--no-pager", "--now", "--prefer-binary",
        "--reload", "--shell", "--subsystem-match", "--system", "--user-group", "--without-pip",
    },
}  # fmt: skip


def options_by_command():
    """Return what each command takes, such as {"quarl-edge export": {"--from", ...}}."""
    found = {}

    def walk(name, command):
        found[name] = {word for part in command.params for word in (*part.opts, *part.secondary_opts)} | {"--help"}
        for child, below in getattr(command, "commands", {}).items():
            walk(f"{name} {child}", below)

    def walk_device(name, parser):
        found[name] = {word for action in parser._actions for word in action.option_strings}
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                for child, below in action.choices.items():
                    walk_device(f"{name} {child}", below)

    walk("quarl-edge", typer.main.get_command(app))
    walk_device("quarl-device", _parser())
    return found


KNOWN = options_by_command()
ALL = set().union(*KNOWN.values()) | FOREIGN


def messages(path):
    """Return the strings of a module with their lines, docstrings aside; of an f-string its fixed parts as one."""
    tree = ast.parse(path.read_text())
    seen = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node, clean=False):
            seen.add(id(node.body[0].value))
    for node in ast.walk(tree):
        if id(node) in seen:
            continue
        if isinstance(node, ast.JoinedStr):
            seen.update(id(part) for part in node.values)
            parts = [part.value if isinstance(part, ast.Constant) else "X" for part in node.values]
            yield node.lineno, "".join(parts)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value


def sources():
    return sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py") if path.name != "style.py")


def unknown_options(text):
    return sorted({word for word in OPTION.findall(text) if word not in ALL})


def misnamed(text):
    """Return the options that a command in `text` is given and does not take, and commands that do not exist."""
    wrong = []
    for program, words, rest in COMMAND.findall(text):
        command = next(
            (name for name in (f"{program} {words}", f"{program} {words.split()[0]}") if name in KNOWN), None
        )
        if command is None:
            if rest.lstrip().startswith("--"):
                wrong.append(f"{program} {words}")
            continue
        stop = re.split(r"\bquarl-(?:edge|device)\b|[|&#;,]| or ", rest)[0]
        wrong += [f"{command} {word}" for word in OPTION.findall(stop) if word not in KNOWN[command] | FOREIGN]
    return wrong


def test_the_search_finds_what_is_wrong():
    assert unknown_options("say --stack 4 or --frames 4") == ["--frames"]
    assert misnamed("give quarl-edge export m.tflite --stack 4 --fleet x") == ["quarl-edge export --fleet"]
    assert misnamed("quarl-edge launch --now") == ["quarl-edge launch"]
    assert misnamed("`quarl-edge bench act --hidden 3` and quarl-device bench --envs 2") == []
    assert len(sources()) > 150
    named = {word for path in sources() for _, text in messages(path) for word in OPTION.findall(text)}
    assert {"--keep-float", "--input", "--output", "--stack", "--signature", "--broker"} <= named


def test_messages_name_options_and_commands_that_exist():
    wrong = []
    for path in sources():
        for line, text in messages(path):
            words = unknown_options(text) + misnamed(text)
            wrong += [
                f"{path.relative_to(ROOT)}:{line}: {word}"
                for word in words
                if word not in OF_PACKAGES.get(path.parent.name, ())
            ]
    assert not wrong


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_name_options_that_the_command_takes(page):
    assert not misnamed(page.read_text())


def test_every_option_of_an_import_has_a_word_in_both_commands():
    from quarl_export.importers.options import COMMAND_OPTIONS, ImportOptions

    assert set(COMMAND_OPTIONS) <= set(ImportOptions.__dataclass_fields__)
    for command in ("quarl-edge export", "quarl-edge inspect"):
        assert set(COMMAND_OPTIONS.values()) <= KNOWN[command]


def test_private_options_are_in_no_page():
    assert not [page.name for page in PAGES for word in PRIVATE | OF_PACKAGES["soak"] if word in page.read_text()]
