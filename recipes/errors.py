"""What can go wrong with a run; each message is one line that says what to do."""

import signal


class RunError(RuntimeError):
    """A run that cannot be started, gone on with or used."""


class UsageError(Exception):
    """Options that do not go together."""


class Interrupted(Exception):
    """Training was told to stop by a signal, and has saved its state if it has a folder."""

    def __init__(self, signal_number: int, saved: bool):
        what = "its state is saved: go on with --resume" if saved else "nothing was saved"
        super().__init__(f"stopped by {signal.Signals(signal_number).name}; {what}")
        self.signal_number = signal_number


class PeerLost(Exception):
    """A training of several workers has lost one of them: all are to be started again."""
