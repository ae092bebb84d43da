"""Small children, which say by files who they are, and ways to see whether they live."""

import asyncio
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from rft_core.children.supervisor import Child, Limits
from rft_core.processes import identity_of, is_gone

PATIENCE_S = 20.0

SAYS = """
import os, signal, subprocess, sys, time
def say(name):
    with open(name + ".tmp", "w") as file:
        file.write(str(os.getpid()))
    os.rename(name + ".tmp", name)
def ignore():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
def parent_of(code, **how):
    return subprocess.Popen([sys.executable, "-S", "-c", PRELUDE + code], **how)
"""
PRELUDE = f"PRELUDE = {SAYS!r}\nPRELUDE = 'PRELUDE = ' + repr(PRELUDE) + PRELUDE\n{SAYS}"
"""For children: `say` where it is, `ignore` who asks to stop, be the `parent_of` another one."""

SLEEPS = "say({0!r}); time.sleep(600)"
STUBBORN = "ignore(); say({0!r}); time.sleep(600)"
QUICK = Limits(restarts=0, within_s=60.0, backoff_s=0.05, grace_s=5.0)


def command(code: str) -> list[str]:
    return [sys.executable, "-S", "-c", PRELUDE + code]


def child(name: str, code: str, **environment: str) -> Child:
    return Child(name, command(code), environment)


def saying(code: str, place: Path) -> str:
    return code.format(str(place))


def until(met: Callable[[], bool]) -> None:
    """Wait for something that comes about in another process."""
    deadline = time.monotonic() + PATIENCE_S
    while not met():
        assert time.monotonic() < deadline
        time.sleep(0.01)


async def until_async(met: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not met():  # noqa: ASYNC110 - it comes about in another process
            await asyncio.sleep(0.01)


def pid_at(place: Path) -> int:
    """Who said to be there, once it does."""
    until(place.exists)
    return int(place.read_text())


def identity_at(place: Path) -> str:
    """The one who said to be there, who must live."""
    identity = identity_of(pid_at(place))
    assert identity and not is_gone(identity)
    return identity


def until_gone(*identities: str) -> None:
    until(lambda: all(is_gone(identity) for identity in identities))


def launcher_of(pid: int) -> int:
    return psutil.Process(pid).ppid()


def own_children() -> set[int]:
    """The children of this process, zombies too: those of tests before may be among them."""
    return {child.pid for child in psutil.Process().children()}
