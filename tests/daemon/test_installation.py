"""`penstock agent install` and `uninstall` on a root of their own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

from penstock.node.tenants.state import locked

PROGRAM = "/opt/penstock/bin/penstock"


@pytest.fixture
def root(tmp_path):
    """A machine that has penstock in /opt/penstock."""
    program = tmp_path / "root" / PROGRAM.lstrip("/")
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    return tmp_path / "root"


def agent(root, *arguments, program=PROGRAM, umask=0o077) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "penstock", "agent", *arguments]
    options = [f"--root={root}"]
    if arguments[0] == "install":
        options.append(f"--program={program}")
    return subprocess.run(
        [*command, *options], capture_output=True, text=True, timeout=60, check=False, umask=umask
    )


def everything(root) -> dict[str, str | None]:
    """Every file and link below `root` by its place, folders as None."""

    def content(path):
        if path.is_symlink():
            return str(path.readlink())
        return None if path.is_dir() else path.read_text()

    return {str(path.relative_to(root)): content(path) for path in sorted(root.rglob("*"))}


def files_of(root) -> set[str]:
    return {place for place, text in everything(root).items() if text is not None}


def test_an_installation_lists_its_files_runs_the_given_program_and_is_removed_whole(root):
    before = files_of(root)
    wanted = agent(root, "install", "--dry-run")
    assert wanted.returncode == 0, wanted.stderr
    assert files_of(root) == before
    done = agent(root, "install")
    assert done.returncode == 0, done.stderr
    made = files_of(root) - before
    assert "etc/systemd/system/penstock-agent.service" in made
    for place in made:
        assert f"{root}/{place}" in done.stderr
        assert f"would write {root}/{place}" in wanted.stderr or "bin/penstock" in place
        if not (root / place).is_symlink():
            assert (root / place).stat().st_mode & 0o777 == 0o644, place
    assert str((root / "usr/local/bin/penstock").readlink()) == PROGRAM
    assert (root / "etc/penstock/policies").is_dir()
    unit = (root / "etc/systemd/system/penstock-agent.service").read_text()
    assert f"ExecStart={PROGRAM} agent" in unit
    gone = agent(root, "uninstall")
    assert gone.returncode == 0, gone.stderr
    assert files_of(root) == before
    assert not (root / "etc/penstock").exists()


def test_a_second_installation_keeps_administrators_files_and_renews_ours(root):
    agent(root, "install")
    first = everything(root)
    again = agent(root, "install")
    assert everything(root) == first
    assert "write" not in again.stderr
    options = root / "etc/penstock/agent.env"
    options.write_text("PENSTOCK_AGENT_OPTIONS=--node n1\n")
    (root / "etc/penstock/policies/ours.yaml").write_text("mine")
    unit = root / "etc/systemd/system/penstock-agent.service"
    unit.write_text(unit.read_text().replace("Restart=always", "Restart=no"))
    assert agent(root, "install").returncode == 0
    assert unit.read_text() == first["etc/systemd/system/penstock-agent.service"]
    assert options.read_text() == "PENSTOCK_AGENT_OPTIONS=--node n1\n"
    left = agent(root, "uninstall")
    assert f"keep {options} (--purge removes it)" in left.stderr
    assert options.exists()
    assert (root / "etc/penstock/policies/ours.yaml").exists()
    (root / "var/lib/penstock").mkdir(parents=True)
    assert agent(root, "uninstall", "--purge").returncode == 0
    assert files_of(root) == {PROGRAM.lstrip("/")}
    assert not (root / "var/lib/penstock").exists()


def test_files_that_others_wrote_are_neither_replaced_nor_removed(root):
    unit = root / "etc/systemd/system/penstock-agent.service"
    unit.parent.mkdir(parents=True)
    unit.write_text("[Service]\n")
    before = everything(root)
    done = agent(root, "install")
    assert done.returncode == 2
    assert f"{unit} already exists" in done.stderr
    assert everything(root) == before
    assert agent(root, "uninstall").returncode == 0
    assert everything(root) == before


@pytest.mark.parametrize(
    ("program", "says"),
    [
        ("/tmp/venv/bin/penstock", "the service cannot run /tmp/venv/bin/penstock"),
        ("penstock", "the service cannot run penstock"),
        ("/opt/other/penstock", "there is no /opt/other/penstock in"),
        ("/opt/penstock/bin", "it is a directory"),
        ("/opt/penstock/bin/readme", "it is not an executable file"),
    ],
)
def test_a_program_that_the_service_could_not_run_is_refused(root, program, says):
    (root / "opt/penstock/bin/readme").touch(mode=0o644)
    done = agent(root, "install", program=program)
    assert done.returncode == 2
    assert says in done.stderr
    assert files_of(root) == {PROGRAM.lstrip("/"), "opt/penstock/bin/readme"}


def test_a_path_with_spaces_and_percent_signs_is_one_word_in_the_unit(root):
    odd = root / 'opt/at 50% "off"/penstock'
    odd.parent.mkdir()
    odd.write_text("#!/bin/sh\n")
    odd.chmod(0o755)
    done = agent(root, "install", program=f"/{odd.relative_to(root)}")
    assert done.returncode == 0, done.stderr
    unit = root / "etc/systemd/system/penstock-agent.service"
    wanted = 'ExecStart="/opt/at 50%% \\"off\\"/penstock" agent $PENSTOCK_AGENT_OPTIONS'
    assert wanted in unit.read_text().splitlines()
    gone = agent(root, "uninstall")
    assert gone.returncode == 0, gone.stderr
    assert not unit.exists()


def test_nothing_is_purged_beneath_an_agent_that_runs(root):
    agent(root, "install")
    state = root / "run/penstock"
    state.mkdir(parents=True, mode=0o700)
    with locked(state / "agent.lock"):  # as an agent holds it for as long as it lives
        before = everything(root)
        done = agent(root, "uninstall", "--purge")
        assert done.returncode == 2
        assert f"an agent is running on {state}" in done.stderr
        assert everything(root) == before
    assert agent(root, "uninstall", "--purge").returncode == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="changes its user: needs root")
def test_a_user_other_than_root_is_refused(root):
    # Run once before the user changes: others may not enter the folder that Python lies in.
    code = """
import contextlib, os, sys
from penstock.cli import main
with contextlib.suppress(SystemExit):
    sys.argv = ["penstock", "agent", "uninstall", "--dry-run", "--root", sys.argv[2], sys.argv[1]]
    word = sys.argv.pop()
    main()
os.setgid(65534); os.setuid(65534)
sys.argv = ["penstock", "agent", word]
main()
"""
    for word in ("install", "uninstall"):
        done = subprocess.run(
            [sys.executable, "-c", code, word, root],
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 2
        assert "you are not root" in done.stderr
        assert "sudo" in done.stderr


def test_a_tenants_state_is_not_purged(root):
    agent(root, "install")
    (root / "run/penstock/tenants/t").mkdir(parents=True)
    before = everything(root)
    done = agent(root, "uninstall", "--purge")
    assert done.returncode == 2
    assert "1 tenants exist" in done.stderr
    assert everything(root) == before


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_the_completion_that_is_installed_completes(root):
    agent(root, "install")
    script = root / "usr/local/share/bash-completion/completions/penstock"
    ask = f"""
        source {script}
        COMP_WORDS=(penstock agent uni); COMP_CWORD=2
        _penstock_completion "{sys.prefix}/bin/penstock"; echo "${{COMPREPLY[@]}}"
    """
    done = subprocess.run(
        ["bash", "-c", ask], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.strip() == "uninstall", done.stderr
