"""Messages for user errors: which exceptions are user errors, and the text shown for each."""

from __future__ import annotations

import errno

from penstock.model import PenstockError, QuantityError

_OTHER_STATE = "name another state directory with --state-dir or $PENSTOCK_STATE_DIR"
_ADVICE = {
    errno.ENOSPC: "free up disk space or write elsewhere",
    errno.EDQUOT: "free up disk space or write elsewhere",
    errno.EROFS: _OTHER_STATE,
    errno.EACCES: f"check its permissions, or {_OTHER_STATE}",
    errno.EISDIR: "a file belongs there: remove or rename that directory",
    errno.ENOTDIR: "a directory belongs there: remove or rename that file",
    errno.EMFILE: "raise the limit on open files (ulimit -n)",
    errno.ENFILE: "close programs: the machine has no file descriptors left",
}


def user_message(error: BaseException) -> str | None:
    """The message for a user error; None for a bug in Penstock."""
    if isinstance(error, (PenstockError, QuantityError)):
        return str(error)
    if isinstance(error, OSError):  # disk full, no permission, a file that is gone
        what = error.filename or "cannot read or write"
        advice = _ADVICE.get(error.errno or 0)
        return f"{what}: {error.strerror or error}" + (f"; {advice}" if advice else "")
    # Errors of the shim's Python binding (pages, simulator) have the same kind of text. Their
    # module is compared by name so that commands without a shim need not import it.
    if any(kind.__module__.startswith("penstock_shim.") for kind in type(error).__mro__):
        return str(error)
    return None
