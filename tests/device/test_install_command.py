"""The installer as a process: from a wheel, with nothing but the standard library, onto a directory for a root."""

import base64
import ensurepip
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest
from install_scene import make_bundle

import quarl_device
from quarl_device import __version__
from quarl_device.install.command import main

PACKAGE = Path(quarl_device.__file__).parent
INFO = f"quarl_edge_device-{__version__}.dist-info"
NAME = f"quarl_edge_device-{__version__}-py3-none-any.whl"


def wheel(extra=b""):
    """Return a wheel of the device package without requirements: those of this environment are used."""
    files = {
        f"quarl_device/{path.relative_to(PACKAGE)}": path.read_bytes()
        for path in sorted(PACKAGE.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }
    files |= {
        "borrowed.pth": "".join(f"{sysconfig.get_path(name)}\n" for name in ("purelib", "platlib")).encode() + extra,
        f"{INFO}/METADATA": f"Metadata-Version: 2.1\nName: quarl-edge-device\nVersion: {__version__}\n".encode(),
        f"{INFO}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{INFO}/entry_points.txt": b"[console_scripts]\nquarl-device = quarl_device.cli:main\n"
        b"[quarl_device.runtimes]\nlitert = quarl_device.runtime.litert:LiteRTRuntime\n",
    }
    record = "".join(f"{name},sha256={_record_digest(data)},{len(data)}\n" for name, data in files.items())
    return files | {f"{INFO}/RECORD": f"{record}{INFO}/RECORD,,\n".encode()}


def _record_digest(data):
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def packed(path, files):
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return path.read_bytes()


def bundle_of(folder, extra=b""):
    folder.mkdir()
    pip = next((Path(ensurepip.__file__).parent / "_bundled").glob("pip-*.whl"))
    files = {
        NAME: packed(folder / NAME, wheel(extra)),
        f"wheels/{pip.name}": pip.read_bytes(),
        "device.toml": b'mode = "train"\n',
        "password": b"secret",
    }
    return make_bundle(folder, files)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    return bundle_of(tmp_path_factory.mktemp("made") / "bundle")


def install(bundle, *words, **options):
    # -I and -S: neither this environment's packages nor the working directory are there, as on a board.
    code = (
        f"import sys; sys.path.insert(0, {str(bundle / NAME)!r}); sys.argv[0] = 'quarl_device.install'; import runpy; "
    )
    code += "runpy.run_module('quarl_device.install', run_name='__main__')"
    return [sys.executable, "-I", "-S", "-c", code, *map(str, words)]


def ran(bundle, *words):
    done = subprocess.run(install(bundle, *words), capture_output=True, text=True, timeout=200, check=False)
    lines = [json.loads(line) for line in done.stdout.splitlines()] if "json" in words else done.stdout.splitlines()
    return done.returncode, lines, done.stderr


def test_it_runs_from_a_wheel_with_the_standard_library_alone(bundle, tmp_path):
    code, lines, said = ran(bundle, bundle, "--root", tmp_path, "--dry-run", "--format", "json")
    assert (code, said) == (0, "")
    assert lines[-1]["result"] == "planned"
    assert {line["state"] for line in lines[:-1]} == {"done", "planned", "unchanged"}
    assert list(tmp_path.iterdir()) == []
    code, lines, said = ran(bundle, "--help")
    assert code == 0
    assert "examples:" in "\n".join(lines)


def test_a_whole_installation_and_its_removal(bundle, tmp_path):
    root = tmp_path / "root"
    code, lines, said = ran(bundle, bundle, "--root", root, "--format", "json")
    assert (code, said) == (0, ""), lines[-1]
    result = lines[-1]
    assert (result["result"], result["supervised_by"], result["previous"]) == ("installed", "none", None)
    program = root / "opt/quarl-edge/current/bin/quarl-device"
    assert result["command"] == f"{program} supervise --config {root}/etc/quarl-edge/device.toml"
    version = subprocess.run([program, "version"], capture_output=True, text=True, timeout=60, check=True)
    assert version.stdout == f"quarl-device {__version__}\n"
    assert (root / "etc/quarl-edge/password").stat().st_mode & 0o777 == 0o600
    assert next((root / "opt/quarl-edge/current").rglob("quarl_device/__pycache__/cli.*.pyc"))

    began = program.stat().st_mtime_ns
    code, lines, _ = ran(bundle, bundle, "--root", root, "--format", "json")
    assert (code, lines[-1]["result"]) == (0, "unchanged")
    assert program.stat().st_mtime_ns == began

    # By the command that it has installed.
    done = subprocess.run(
        [program, "install", "--remove", "--purge", "--root", root],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith("removed")
    assert not [path for path in root.rglob("*") if "quarl" in path.name and "lock" not in path.name]


def test_a_release_that_does_not_work_is_never_current_and_a_killed_one_is_made_anew(bundle, tmp_path):
    root = tmp_path / "root"
    # What runs at every start of the release's interpreter ends it.
    broken = bundle_of(
        tmp_path / "broken", b"import os; 'pip' in ' '.join(__import__('sys').orig_argv) or os._exit(7)\n"
    )
    code, lines, _ = ran(bundle, broken, "--root", root, "--format", "json")
    assert (code, lines[-1]["step"], lines[-1]["code"]) == (85, "release", 85)
    assert "self-test ended with code 7" in lines[-1]["error"]
    assert not (root / "opt/quarl-edge/current").exists()

    with subprocess.Popen(
        install(bundle, bundle, "--root", root, "--format", "json"), stdout=subprocess.PIPE, text=True
    ) as process:
        for line in process.stdout:
            if "Processing" in line or "Installing" in line:
                process.kill()
    assert process.returncode == -signal.SIGKILL
    assert not (root / "opt/quarl-edge/current").exists()
    code, lines, _ = ran(bundle, bundle, "--root", root, "--format", "json")
    assert (code, lines[-1]["result"]) == (0, "installed")
    assert [path.name for path in (root / "opt/quarl-edge/releases").iterdir()] == [lines[-1]["release"]]


def test_a_term_signal_is_told_and_nobody_listening_is_no_reason_to_stop(bundle, tmp_path):
    words = install(bundle, bundle, "--root", tmp_path / "root", "--format", "json")
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            if '"release", "state": "begins"' in line:
                process.send_signal(signal.SIGTERM)
        last = json.loads(line)
        assert process.stderr.read() == ""
    assert process.returncode == 130
    assert (last["result"], last["code"], last["error"]) == ("failed", 130, "interrupted")
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0
    assert (tmp_path / "root/opt/quarl-edge/current/bin/quarl-device").exists()


def test_a_damaged_bundle_has_its_code(bundle, tmp_path):
    damaged = tmp_path / "damaged"
    shutil.copytree(bundle, damaged)
    (damaged / "device.toml").write_text("mode = 'deploy'\n")
    code, lines, _ = ran(bundle, damaged, "--root", tmp_path / "root", "--format", "json")
    assert code == 84
    assert {"result": "failed", "step": "bundle", "code": 84}.items() <= lines[-1].items()
    code, lines, _ = ran(bundle, damaged, "--root", tmp_path / "root")
    assert lines[-1].startswith("failed at step bundle, code 84: device.toml is not what bundle.json lists")


def test_two_installers_at_once(bundle, tmp_path, monkeypatch, capsys):
    from quarl_device.install import command
    from quarl_device.install.lock import only_one
    from quarl_device.install.real_host import RealHost

    monkeypatch.setattr(command, "_undo_on_signals", lambda: None)
    monkeypatch.setattr(command, "only_one", lambda host: only_one(host, wait_s=0.0))
    umask = os.umask(0o022)
    try:
        with only_one(RealHost(tmp_path)):
            assert main([str(bundle), "--root", str(tmp_path), "--format", "json"]) == 86
    finally:
        os.umask(umask)
    assert "another installation is at work" in json.loads(capsys.readouterr().out.splitlines()[-1])["error"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "which bundle"),
        (["x", "--remove"], "--remove takes no bundle"),
        (["x", "--purge"], "--purge: of use with --remove alone"),
        (["x", "--memory-mib", "1"], "64.."),
        (["x", "--extras", "../x"], "names of extras"),
        (["x", "--nonsense"], "unrecognized"),
    ],
)
def test_wrong_usage(words, said, capsys):
    umask = os.umask(0o022)
    os.umask(umask)
    assert main(words) == 2
    assert said in capsys.readouterr().err
    assert os.umask(umask) == umask
