"""`penstock card top` without torch: files that nobody may trust, ended programs, bad arguments."""

import contextlib
import fcntl
import importlib.util
import json
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from dataclasses import asdict

import pytest

from penstock.card import published, runtime_folder
from penstock.card.published import CardFigures, CostFigures, ProgramFigures
from penstock.model import PenstockError


@pytest.fixture
def runtime(tmp_path, monkeypatch):
    """A runtime folder of this user, and no other one."""
    folder = tmp_path / "runtime"
    folder.mkdir(mode=0o700)
    shared = tmp_path / "shared"
    shared.mkdir(mode=0o777)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    monkeypatch.setattr(runtime_folder, "USERS", tmp_path / "users")
    monkeypatch.setattr(runtime_folder, "SHARED", shared)
    return folder


@pytest.fixture
def process():
    """A process that runs."""
    with subprocess.Popen(["sleep", "60"]) as one:
        yield one
        one.kill()


def figures(pid, **values):
    ticks = published.started_ticks(pid) or 1
    cost = CostFigures("gather", "aten::sort", "no rule splits it", "train.py:12", 7, 1 << 20, 0.0)
    return ProgramFigures(pid, ticks, "python train.py", time.time(), 3.0, user=os.geteuid(),
                          cards=[CardFigures("0 cpu", 1.0, 0.25), CardFigures("1 cpu", 3.0, 0.75)],
                          costs=[cost], **values)  # fmt: skip


def publish(program):
    folder = runtime_folder.open_own()
    published.write(folder, program)
    os.close(folder)


def top(*arguments, **variables):
    return subprocess.run(
        [sys.executable, "-m", "penstock", "card", "top", *arguments],
        env={**os.environ, **variables}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


# What is shown.


def test_a_program_is_read_as_it_was_published(runtime, process):
    program = figures(process.pid, steps=5)
    publish(program)
    assert published.read_all() == ([program], [])
    folder = runtime / "penstock/card"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert [one.name for one in folder.iterdir()] == [f"{process.pid}.json"]


def test_the_command_shows_cards_and_slow_lines(runtime, process):
    publish(figures(process.pid))
    shown = top("--once", str(process.pid))
    assert (shown.returncode, shown.stderr) == (0, "")
    for word in ("python train.py", "25 %", "75 %", "train.py:12", "aten::sort", "no rule"):
        assert word in shown.stdout
    (found,) = json.loads(top("--json", str(process.pid)).stdout)
    assert found["costs"][0]["count"] == 7
    assert [one["share"] for one in found["cards"]] == [0.25, 0.75]


def test_old_figures_of_a_card_are_shown_with_what_it_does(runtime, process):
    program = figures(process.pid)
    program.cards[1].age_s, program.cards[1].doing = 7.0, "executing message 9 (run) for 7.0 s"
    publish(program)
    assert "card 1 cpu: figures of 7 s ago; executing message 9" in top("--once").stdout


def test_the_command_never_imports_torch(runtime, process, tmp_path):
    (tmp_path / "torch.py").write_text("raise SystemExit('torch was imported')")
    publish(figures(process.pid))
    shown = top("--once", PYTHONPATH=str(tmp_path))
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "train.py:12" in shown.stdout


def test_the_live_view_is_drawn_until_q(runtime, process):
    publish(figures(process.pid))
    child, terminal = pty.fork()
    if child == 0:
        arguments = [sys.executable, "-m", "penstock", "card", "top", "--interval", "0.2"]
        os.execv(sys.executable, arguments)  # noqa: S606 - the terminal's program
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 140, 0, 0))
    seen = b""
    while b"aten::sort" not in seen:
        assert select.select([terminal], [], [], 30)[0], seen
        seen += os.read(terminal, 65536)
    os.write(terminal, b"q")
    with contextlib.suppress(OSError):  # the terminal has ended
        while os.read(terminal, 65536):
            pass
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    os.close(terminal)


def test_without_a_program_it_says_so(runtime):
    assert published.read_all() == ([], [])
    assert list(runtime.iterdir()) == []  # who only looks makes no folder


# Programs that have ended.


@pytest.mark.parametrize("text", [None, "nonsense"])
def test_the_file_of_a_killed_program_is_removed(runtime, text):
    with subprocess.Popen(["sleep", "60"]) as one:
        publish(figures(one.pid))
        if text is not None:
            (runtime / "penstock/card" / f"{one.pid}.json").write_text(text)
        (runtime / "penstock/card" / f"{one.pid}.new").write_text("half of")
        one.kill()
    assert published.read_all() == ([], [])
    assert list((runtime / "penstock/card").iterdir()) == []


def test_a_later_process_of_the_same_number_is_not_taken_for_the_program(runtime, process):
    program = figures(process.pid)
    program.started_ticks -= 1
    publish(program)
    assert published.read_all() == ([], [])
    assert list((runtime / "penstock/card").iterdir()) == []


# Folders and files that nobody may trust.


def test_a_folder_that_is_a_link_is_not_used(runtime, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    (runtime / "penstock").mkdir(mode=0o700)
    (runtime / "penstock/card").symlink_to(elsewhere)
    publish(figures(os.getpid()))
    assert list(elsewhere.iterdir()) == []
    own = runtime_folder.SHARED / f"penstock-card-{os.geteuid()}"
    assert [one.name for one in own.iterdir()] == [f"{os.getpid()}.json"]


@pytest.mark.parametrize("kind", ["link", "file", "open to others", "of somebody else"])
def test_without_a_folder_to_trust_nothing_is_written(runtime, tmp_path, monkeypatch, kind):
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    own = runtime_folder.SHARED / f"penstock-card-{os.geteuid()}"
    if kind == "link":
        own.symlink_to(runtime)
    elif kind == "file":
        own.write_text("")
    else:
        own.mkdir(mode=0o700)
        own.chmod(0o770 if kind == "open to others" else 0o700)
        if kind == "of somebody else":
            if os.geteuid():
                pytest.skip("only root can give a folder away")
            os.chown(own, 65534, 65534)
    with pytest.raises(PenstockError, match="no folder for the figures"):
        runtime_folder.open_own()
    assert published.read_all() == ([], [])
    assert list(runtime.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root sees the programs of others")
def test_root_sees_the_programs_of_all_users_in_their_own_folders_alone(runtime, process):
    for uid, name in ((65534, "penstock-card-65534"), (65534, "penstock-card-65533")):
        folder = runtime_folder.SHARED / name
        folder.mkdir(mode=0o700)
        text = json.dumps({"version": published.VERSION, **asdict(figures(process.pid))})
        (folder / f"{process.pid}.json").write_text(text)
        os.chown(folder, uid, uid)
        os.chown(folder / f"{process.pid}.json", uid, uid)
    (found,), problems = published.read_all()
    assert (found.user, problems) == (65534, [])


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", "{", "{}", "nonsense", "[" * 100_000, '{"version": 99}', "x" * (2 << 20),
        json.dumps({"version": 1, **asdict(figures(1)), "cards": {}}),
        json.dumps({"version": 1, **asdict(figures(1)), "steps": -1}),
        json.dumps({"version": 1, **asdict(figures(1)), "running_s": float("nan")}),
        json.dumps({"version": 1, **asdict(figures(1)), "loss": float("nan")}),
        json.dumps({"version": 1, **asdict(figures(1)), "samples": -1}),
        json.dumps({"version": 1, **asdict(figures(1)), "is_sharded": 1}),
        json.dumps({"version": 1, "pid": 1, "cards": [], "costs": []}),
        json.dumps({"version": 1, **asdict(figures(1)), "cards": [1]}),
    ],
)  # fmt: skip
def test_a_file_that_says_nonsense_is_named_and_the_others_are_shown(runtime, process, text):
    publish(figures(os.getpid()))
    (runtime / "penstock/card" / f"{process.pid}.json").write_text(text)
    (found,), (problem,) = published.read_all()
    assert found.pid == os.getpid()
    assert f"process {process.pid}" in problem


def test_files_of_other_releases_with_more_or_fewer_figures_are_read(runtime, process):
    program = figures(process.pid, samples=7, loss=-2.5)
    publish(program)
    file = runtime / "penstock/card" / f"{process.pid}.json"
    told = json.loads(file.read_text())
    file.write_text(json.dumps({**told, "of_a_later_release": [1]}))
    assert published.read_all() == ([program], [])
    del told["samples"], told["loss"], told["cards"][0]["rows"]
    file.write_text(json.dumps(told))
    (found,), _ = published.read_all()
    assert (found.samples, found.loss, found.cards[0].rows) == (None, None, None)


def test_the_command_shows_loss_and_samples_a_second_where_they_are_known(runtime, process):
    program = figures(process.pid, loss=-0.123456, samples_per_s=1234.5)
    program.cards[1].samples_per_s = 925.9
    publish(program)
    shown = top("--once", str(process.pid)).stdout
    assert "loss -0.12346, 1,234.5 samples/s" in shown
    assert "925.9" in shown
    publish(figures(process.pid))
    assert "loss -, - samples/s" in top("--once", str(process.pid)).stdout
    publish(figures(process.pid, is_loss_finite=False))
    assert "loss no finite number" in top("--once", str(process.pid)).stdout


@pytest.mark.parametrize("kind", ["link", "pipe", "folder", "of somebody else"])
def test_a_file_that_is_no_file_of_its_user_is_named(runtime, process, kind):
    publish(figures(os.getpid()))
    publish(figures(process.pid))
    place = runtime / "penstock/card" / f"{process.pid}.json"
    if kind == "of somebody else":
        if os.geteuid():
            pytest.skip("only root can give a file away")
        os.chown(place, 65534, 65534)
    elif kind == "link":
        place.rename(runtime / "valid")
        place.symlink_to(runtime / "valid")
    else:
        place.unlink()
        os.mkfifo(place) if kind == "pipe" else place.mkdir()
    programs, (problem,) = published.read_all()
    assert len(programs) == 1
    assert f"process {process.pid}" in problem


def test_what_a_program_says_cannot_move_the_cursor(runtime, process):
    publish(figures(process.pid, problem="\x1b[2J[bold]gone"))
    shown = top("--once", str(process.pid)).stdout
    assert "\x1b" not in shown
    assert "[2J[bold]gone" in shown


# Arguments.


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["0"], "Invalid value for '[PID]'"),
        (["-5"], "No such option"),
        (["x"], "Invalid value for '[PID]'"),
        (["1", "2"], "unexpected extra argument"),
        (["--interval", "nan"], "Invalid value for '--interval'"),
        (["--interval", "0"], "Invalid value for '--interval'"),
        (["4194305"], "is no program that uses a virtual card"),
    ],
)
def test_bad_arguments_are_named(runtime, arguments, said):
    shown = top(*arguments)
    assert shown.returncode == 2
    assert said in shown.stderr
    assert shown.stdout == ""


# The demo.


@pytest.mark.skipif(importlib.util.find_spec("torch") is not None, reason="torch is here")
def test_the_demo_without_torch_says_what_to_install(penstock, tmp_path):
    shown = penstock("demo", "card", cwd=tmp_path)
    assert (shown.returncode, shown.stdout) == (2, "")
    assert "needs torch" in shown.stderr
    assert "pip install 'penstock[torch]'" in shown.stderr
    assert list(tmp_path.glob("*.json")) == []


def test_the_demo_of_programs_takes_no_unknown_word(penstock):
    shown = penstock("demo", "cards")
    assert shown.returncode == 2
    assert "No such command" in shown.stderr
