"""The seam that SSH is behind: the real one and the fake, held by the same checks."""

import asyncio

import asyncssh
import pytest
from host_conformance import HOST_CHECKS
from local_host import LocalHost
from ssh_board import SshBoard

from quarl_device.errors import BoardRefused, BoardUnreachable, UsageError
from quarl_edge.deploy.ssh import connect_ssh
from quarl_edge.deploy.target import Target


@pytest.fixture
def board(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "nobody"))
    with SshBoard(tmp_path / "board") as started:
        yield started


async def _connect(board, **changed):
    chosen = {"identity": board.identity, "known_hosts": board.known_hosts, **changed}
    return await connect_ssh(Target(host="127.0.0.1", user="tester", port=board.port), **chosen)


def _refused(board, kind, **changed):
    with pytest.raises(kind) as caught:
        asyncio.run(_connect(board, **changed))
    return caught.value


@pytest.mark.parametrize("check", HOST_CHECKS, ids=lambda check: check.__name__)
def test_ssh(check, board, tmp_path):
    async def checked():
        host = await _connect(board)
        try:
            await check(host, tmp_path)
        finally:
            await host.close()

    asyncio.run(checked())


@pytest.mark.parametrize("check", HOST_CHECKS, ids=lambda check: check.__name__)
def test_fake(check, tmp_path):
    asyncio.run(check(LocalHost({"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}), tmp_path))


def test_an_unknown_host_key_is_shown_with_the_way_out(board):
    board.known_hosts.write_text("")
    error = _refused(board, BoardRefused)
    assert error.code == 88
    assert "is not known" in error.message
    assert board.host_key.get_fingerprint() in error.message
    assert f"ssh-keyscan -p {board.port} 127.0.0.1 >> {board.known_hosts}" in error.hint
    assert f"ssh -p {board.port} tester@127.0.0.1" in error.hint


def test_no_file_of_known_hosts_trusts_nobody(board):
    board.known_hosts.unlink()
    assert "is not known" in _refused(board, BoardRefused).message


@pytest.mark.parametrize("kind", ["ssh-ed25519", "ecdsa-sha2-nistp256"])
def test_a_changed_host_key_is_another_error(board, kind):
    board.know(asyncssh.generate_private_key(kind))
    error = _refused(board, BoardRefused)
    assert "is not the one in" in error.message
    assert f"ssh-keygen -R '[127.0.0.1]:{board.port}'" in error.hint
    assert "keyscan" not in error.hint


def test_a_revoked_host_key_is_said_to_be_revoked(board):
    board.known_hosts.write_text("@revoked * " + board.host_key.export_public_key().decode())
    assert "revoked" in _refused(board, BoardRefused).message


def test_trust_everybody_of_a_configuration_is_not_taken(board, monkeypatch, tmp_path):
    home = tmp_path / "careless"
    (home / ".ssh").mkdir(parents=True)
    (home / ".ssh" / "config").write_text("Host *\n  UserKnownHostsFile none\n  StrictHostKeyChecking no\n")
    monkeypatch.setenv("HOME", str(home))
    assert "is not known" in _refused(board, BoardRefused, known_hosts=None).message


def test_the_users_own_configuration_and_known_hosts_are_used(board, monkeypatch, tmp_path):
    home = tmp_path / "somebody"
    (home / ".ssh").mkdir(parents=True)
    (home / ".ssh" / "config").write_text(
        f"Host arm\n  HostName 127.0.0.1\n  Port {board.port}\n  User tester\n  IdentityFile {board.identity}\n"
    )
    (home / ".ssh" / "known_hosts").write_text(board.known_hosts.read_text())
    monkeypatch.setenv("HOME", str(home))

    async def asked():
        host = await connect_ssh(Target(host="arm"))
        ran = await host.run("echo hello", timeout_s=20)
        await host.close()
        return ran.stdout

    assert asyncio.run(asked()) == b"hello\n"


def test_a_key_that_is_not_accepted(board, tmp_path):
    other = tmp_path / "other"
    asyncssh.generate_private_key("ssh-ed25519").write_private_key(str(other))
    error = _refused(board, BoardRefused, identity=other)
    assert "accepts none of your keys" in error.message
    assert f"ssh-copy-id -p {board.port} tester@127.0.0.1" in error.hint


def test_a_key_with_a_passphrase_goes_into_the_agent(board, tmp_path):
    locked = tmp_path / "locked"
    asyncssh.generate_private_key("ssh-ed25519").write_private_key(str(locked), "pkcs8-pem", passphrase="secret")
    error = _refused(board, UsageError, identity=locked)
    assert "ssh-add" in error.hint


def test_ones_own_key_with_a_passphrase_is_no_obstacle_to_others(board, monkeypatch, tmp_path):
    keys = tmp_path / "somebody" / ".ssh"
    keys.mkdir(parents=True)
    key = asyncssh.generate_private_key("ssh-rsa", key_size=2048)
    key.write_private_key(str(keys / "id_rsa"), "pkcs8-pem", passphrase="secret")
    monkeypatch.setenv("HOME", str(keys.parent))
    error = _refused(board, BoardRefused, identity=None)
    assert "accepts none of your keys" in error.message
    assert "ssh-add" in error.hint


def test_no_such_key_file(board, tmp_path):
    assert "no such key file" in _refused(board, UsageError, identity=tmp_path / "none").message


def test_nothing_listens_there(board):
    board.__exit__()
    error = _refused(board, BoardUnreachable)
    assert error.code == 87
    assert "refuses SSH connections" in error.message


def test_a_server_that_never_answers_is_left(tmp_path, monkeypatch):
    monkeypatch.setattr("quarl_edge.deploy.ssh._CONNECT_TIMEOUT_S", 0.3)
    with SshBoard(tmp_path / "board", deaf=True) as board:
        assert "did not answer" in _refused(board, BoardUnreachable).message


def test_there_is_no_such_host(board):
    with pytest.raises(BoardUnreachable) as caught:
        asyncio.run(connect_ssh(Target(host="no-such-host.invalid")))
    assert "no host" in caught.value.message


@pytest.mark.parametrize("watched", [True, False])
def test_a_connection_that_is_cut_is_an_error(board, watched):
    async def cut():
        host = await _connect(board)
        try:
            if watched:
                await host.watch("echo up; sleep 60", lambda _: board.cut(), timeout_s=30)
            else:
                asyncio.get_running_loop().call_later(0.3, board.cut)
                await host.run("sleep 60", timeout_s=30)
        finally:
            await host.close()

    with pytest.raises(BoardUnreachable) as caught:
        asyncio.run(cut())
    assert "was lost" in caught.value.message


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("pi@raspberrypi.local", ("pi", "raspberrypi.local")),
        ("10.0.0.7", ("", "10.0.0.7")),
        ("pi@[fe80::1%eth0]", ("pi", "fe80::1%eth0")),
        ("my_alias", ("", "my_alias")),
    ],
)
def test_boards_have_names(text, expected):
    target = Target.parse(text)
    assert (target.user, target.host) == expected


@pytest.mark.parametrize(
    "text", ["", "@host", "pi@", "-oProxyCommand=x", "pi@-x", "a b@c", "pi@h;reboot", "pi@host:22"]
)
def test_what_is_no_board(text):
    with pytest.raises(UsageError):
        Target.parse(text)
