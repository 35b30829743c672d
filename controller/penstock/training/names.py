"""Names that a run has elsewhere."""

from __future__ import annotations

from penstock.model.names import MAX_TENANT_NAME


def application_name(project: str, run: str, attempt: int) -> str | None:
    """The name of a run's application in the compute pool; None: the pool gives it one.

    It is the run's name, if that is short enough, with a number of its own at each attempt, because
    the former one may not be over yet.
    """
    name = f"{project}.{run}" + (f".{attempt}" if attempt > 1 else "")
    return name if len(name) <= MAX_TENANT_NAME else None
