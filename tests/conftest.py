"""The harness around every test: event loops, deadlines, leaks, and the simulator's seeds.

Must NOT hold helpers or fixtures that only some tests need: those live beside these tests.
"""

import asyncio
import faulthandler
import gc
import os
import secrets
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

import pytest
import pytest_asyncio
import uvloop
from hypothesis import Phase, settings
from xdist.workermanage import WorkerController

settings.register_profile("lowcomm", deadline=None)  # A busy machine is no failure.
settings.load_profile("lowcomm")

LOOPS: Mapping[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "uvloop": uvloop.new_event_loop,
    "asyncio": asyncio.new_event_loop,
}
DEADLINE_S = 120.0
DEADLINE_REPEAT_S = 5.0  # Code under test may swallow the first failure; then the next one hits.
TEARDOWN_S = 30.0
BACKSTOP_S = 15.0
SETTLE_S = 5.0  # A thread that has been told to end, or a killed process, may take this long.
SETTLE_POLL_S = 0.02
LEAK_CHECKED = ("peers", "cluster")
MARK = "LOWCOMM_TEST"  # In the environment of whatever a test starts, to find its orphans by.
SEED_ENV = "LOWCOMM_SEED_BASE"

GARBAGE = 10_000
"""New objects between two garbage collections: a test makes many that are freed without one."""

SEED_BASE = pytest.StashKey[int]()
STDERR = pytest.StashKey[int]()
DEADLINE = pytest.StashKey[float]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--seed-base",
        type=int,
        metavar="N",
        help=f"first seed of the fresh simulator seeds (or {SEED_ENV}); default: random",
    )
    parser.addoption(
        "--plant",
        metavar="MUTANT",
        help="plant this bug of sims.mutants or sims.shell_mutants, or of FILE.py:NAME; "
        "the tests should fail",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        f"deadline(seconds): fail when set-up and call take longer, default {DEADLINE_S:g} s",
    )
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # As a shell has it for what it starts behind its back; what tests start would inherit it.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.stash[SEED_BASE] = _choose_seed_base(config)
    _plant(config.getoption("--plant"))
    # Descriptor 2 belongs to pytest's capture while a test runs.
    config.stash[STDERR] = os.dup(2)
    config.add_cleanup(lambda: os.close(config.stash[STDERR]))
    # libuv opens a signal pipe and starts four resolver threads once per process and keeps them.
    # Do that now, so that they do not count as a leak of the first test.
    for make in LOOPS.values():
        loop = make()
        loop.run_until_complete(loop.getaddrinfo("localhost", 0))
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()


@pytest.hookimpl(tryfirst=True)  # Before `-m` chooses.
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what runs on the loop that a daemon takes only if it lacks uvloop: it is long. Skip the
    tests that need a GPU where torch sees none."""
    for item in items:
        if isinstance(item, pytest.Function) and _runs_on(item, "asyncio"):
            item.add_marker(pytest.mark.long)
    need = [item for item in items if item.get_closest_marker("gpu")]
    if need and not _has_gpu():
        for item in need:
            item.add_marker(pytest.mark.skip(reason="no GPU"))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """The garbage collector need not look through thousands of tests and their modules again and
    again: they stay to the end."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
        gc.set_threshold(GARBAGE)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: WorkerController) -> None:
    """What `--numprocesses` starts: all of them take their seeds from the same number on."""
    node.workerinput[SEED_ENV] = node.config.stash[SEED_BASE]


def pytest_report_header(config: pytest.Config) -> str:
    return f"seeds: fresh ones from {config.stash[SEED_BASE]} (repeat with --seed-base)"


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, exitstatus: int, config: pytest.Config
) -> None:
    if exitstatus == pytest.ExitCode.TESTS_FAILED:  # The header is hidden under -q.
        terminalreporter.write_line(f"repeat with --seed-base {config.stash[SEED_BASE]}")


def pytest_asyncio_loop_factories(
    config: pytest.Config,
    item: pytest.Item,
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Every async test runs once on each loop: a daemon takes either, and so may users."""
    return LOOPS


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Start a test's time; if not even a signal ends it in time, end the whole run."""
    marker = item.get_closest_marker("deadline")
    seconds = float(marker.args[0]) if marker else DEADLINE_S
    item.stash[DEADLINE] = time.monotonic() + seconds
    faulthandler.dump_traceback_later(
        seconds + TEARDOWN_S + BACKSTOP_S, exit=True, file=item.config.stash[STDERR]
    )
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


# One limit for each phase: what is raised between two of them would end pytest itself.
@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None]:
    with _limit(item.stash[DEADLINE] - time.monotonic()):
        return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    with _limit(item.stash[DEADLINE] - time.monotonic()):
        return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown() -> Generator[None]:
    with _limit(TEARDOWN_S):  # Its own time: what a late test started must still be stopped.
        return (yield)


@pytest.fixture(scope="session")
def seed_base(pytestconfig: pytest.Config) -> int:
    """The first of this run's fresh simulator seeds; the header prints it."""
    return pytestconfig.stash[SEED_BASE]


@pytest.fixture(autouse=True)
def no_leaks(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that leaves files, threads or processes behind (tests/peers, tests/cluster).

    Set up before every other fixture of the test, so torn down after the loop is closed.
    """
    if not _leak_checked(request):
        yield
        return
    mark = secrets.token_hex(8)
    before = _held(mark)
    os.environ[MARK] = mark
    yield
    os.environ.pop(MARK, None)
    leaks = _leaks_after_settling(before, mark)
    names = sorted(f"{text} {_name(*key)}" for key, text in leaks.items())
    for kind, number in leaks:
        if kind == "process":
            _kill(number)  # It would hold ports and CPU of the tests that follow.
    if leaks:
        pytest.fail("\n".join(["left behind:", *names]), pytrace=False)


@pytest.fixture(autouse=True)
def no_task_leaks(request: pytest.FixtureRequest, no_leaks: None) -> None:
    """Ask for the check only where there is a loop: it would start one for a plain test."""
    if _leak_checked(request) and request.node.get_closest_marker("asyncio"):
        request.getfixturevalue("_no_task_left")


@pytest_asyncio.fixture
async def _no_task_left() -> AsyncIterator[None]:
    """Fail a test that leaves tasks behind, before closing the loop cancels them silently."""
    yield
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    if tasks:
        pytest.fail("\n".join(["left behind:", *sorted(map(repr, tasks))]), pytrace=False)


def _runs_on(item: pytest.Function, loop: str) -> bool:
    """Whether this is the run of an async test on the loop of this name."""
    if item.get_closest_marker("asyncio") is None or not hasattr(item, "callspec"):
        return False
    return loop in item.callspec.id.split("-")


def _has_gpu() -> bool:
    """Import torch only if a test asks: it takes seconds."""
    import torch

    return torch.cuda.is_available()


def _plant(mutant: str | None) -> None:
    """Before a test is collected: what imports a planted function has the bug, too."""
    if mutant is None:
        return
    # One failure is enough: no smallest example, and none that a healthy run would play again.
    phases = (Phase.explicit, Phase.generate)
    settings.register_profile("planted", deadline=None, phases=phases, database=None)
    settings.load_profile("planted")
    from protocols.types.errors import ConfigError
    from sims.planted_tests import plant

    try:
        plant(mutant)
    except ConfigError as error:
        raise pytest.UsageError(str(error)) from error


def _choose_seed_base(config: pytest.Config) -> int:
    given = getattr(config, "workerinput", {}).get(SEED_ENV)
    option: int | None = given or config.getoption("--seed-base")
    if option is not None:
        return option
    text = os.environ.get(SEED_ENV)
    if text is None:
        return secrets.randbelow(1 << 32)
    try:
        return int(text)
    except ValueError:
        raise pytest.UsageError(f"{SEED_ENV} must be an integer, got {text!r}") from None


@contextmanager
def _limit(seconds: float) -> Generator[None]:
    """Fail what runs inside, by SIGALRM, when it takes longer."""
    expired: list[str] = []

    def expire(_number: int, _frame: FrameType | None) -> None:
        loop = _running_loop()
        tasks = asyncio.all_tasks(loop) if loop else ()
        expired.append("\n".join(["too late: the test's deadline is over", *map(repr, tasks)]))
        if loop is not None:
            # Raising is not enough. uvloop gives what is raised between two callbacks to the
            # loop's exception handler, and what is raised in a background task ends only that.
            loop.call_soon_threadsafe(loop.stop)
        if loop is None or asyncio.current_task(loop) is not None:
            pytest.fail(expired[0])

    previous = signal.signal(signal.SIGALRM, expire)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 0.001), DEADLINE_REPEAT_S)  # 0 is: never.
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
        if expired:  # Whatever came of the interruption, and also when it was swallowed.
            gc.collect()  # A dying task logs its traceback; do that before pytest makes its own.
            pytest.fail(expired[0])


def _running_loop() -> asyncio.AbstractEventLoop | None:
    with suppress(RuntimeError):
        return asyncio.get_running_loop()
    return None


def _leak_checked(request: pytest.FixtureRequest) -> bool:
    return request.path.relative_to(Path(__file__).parent).parts[0] in LEAK_CHECKED


def _leaks_after_settling(
    before: Mapping[tuple[str, int], str], mark: str
) -> dict[tuple[str, int], str]:
    """What is held now and was not before, or is another thing under the same number."""
    deadline = time.monotonic() + SETTLE_S
    while True:
        leaks = {key: text for key, text in _held(mark).items() if before.get(key) != text}
        if not leaks or time.monotonic() > deadline:
            return leaks
        gc.collect()  # A descriptor may hang on a reference cycle, such as a traceback.
        time.sleep(SETTLE_POLL_S)


def _held(mark: str) -> dict[tuple[str, int], str]:
    """Files, threads and processes of this process, and orphans whose environment has `mark`.

    (kind, number) to a description for people. Threads include those that Python does not know,
    such as the two of a ZeroMQ context.
    """
    held: dict[tuple[str, int], str] = {}
    for link in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # The descriptor that reads this very folder.
            held["file", int(link.name)] = f"file {link.name}: {link.readlink()}"
    for thread in Path("/proc/self/task").iterdir():
        held["thread", int(thread.name)] = f"thread {thread.name}"
        for child in _read(thread / "children").split():
            held["process", int(child)] = f"process {int(child)}"
    entry = f"{MARK}={mark}".encode()
    for process in Path("/proc").glob("[0-9]*"):
        if entry in _read(process / "environ").split(b"\0"):
            held["process", int(process.name)] = f"process {process.name}"
    return held


def _name(kind: str, number: int) -> str:
    """What a process was started as, or what a thread is called; nothing for a file."""
    if kind == "process":
        command = _read(Path(f"/proc/{number}/cmdline"))
        return command.replace(b"\0", b" ").decode() or "(dead, but nobody waited for it)"
    known = {thread.native_id: thread.name for thread in threading.enumerate()}
    comm = _read(Path(f"/proc/self/task/{number}/comm")).decode().strip()
    return known.get(number, comm) if kind == "thread" else ""


def _read(path: Path) -> bytes:
    """A file of /proc; nothing when its process is gone or not ours."""
    with suppress(OSError):
        return path.read_bytes()
    return b""


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    with suppress(ChildProcessError):  # An orphan: whoever adopted it reaps it.
        os.waitpid(pid, 0)
