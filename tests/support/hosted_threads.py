"""An environment whose module starts a thread as it is imported."""

import threading

from tests.support.hosted_toy import Rogue

threading.Thread(target=threading.Event().wait, daemon=True).start()


class ThreadedRogue(Rogue):
    """A `Rogue` in a module with threads."""
