"""Heartbeats: a thread that keeps leases alive while the process that holds them works."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rft_core.errors import LostClaimError, UserError


@contextmanager
def heartbeat(beat: Callable[[], object], every_s: float) -> Iterator[None]:
    """Call `beat` every so many seconds for as long as the block lasts.

    A catalog that does not answer for a moment is asked again at the next beat. Once the claim is lost the beats end: whoever lost
    it finds out, with the reason, when it commits.
    """
    over = threading.Event()

    def keep_on() -> None:
        while not over.wait(every_s):
            try:
                beat()
            except LostClaimError:
                return
            except UserError:
                continue

    thread = threading.Thread(target=keep_on, name="heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
