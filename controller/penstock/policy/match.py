"""Selection of the policy for a command on a plain machine; two matching policies are an error."""

from __future__ import annotations

import fnmatch
from pathlib import PurePath
from typing import TYPE_CHECKING

from penstock.model import PenstockError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.policy.load import LoadedPolicy
    from penstock.policy.schema import Selector


def matches_command(selector: Selector | None, command: str, user: str, uid: int) -> bool:
    """Whether `selector` matches a command on a plain machine. Label selectors match only Pods."""
    if selector is None:
        return True
    if selector.match_labels is not None:
        return False
    if selector.command is not None:
        names = (command, PurePath(command).name)
        if not any(fnmatch.fnmatchcase(name, selector.command) for name in names):
            return False
    return selector.user is None or selector.user in (user, str(uid))


def policy_for_command(
    policies: Sequence[LoadedPolicy], command: str, user: str, uid: int
) -> LoadedPolicy:
    """The only policy that matches. Raises `PenstockError` if no policy or several match."""
    matching = [p for p in policies if matches_command(p.policy.spec.selector, command, user, uid)]
    if len(matching) == 1:
        return matching[0]
    if matching:
        raise PenstockError(
            f"{len(matching)} policies match the command {command!r} of user {user}",
            "; ".join(map(str, matching)),
            "narrow their selectors so that one matches",
        )
    raise PenstockError(
        f"no policy matches the command {command!r} of user {user}",
        "candidates: "
        + "; ".join(f"{p}, which {_selects(p.policy.spec.selector)}" for p in policies),
        "add a policy with `selector: {command: …}` or `{user: …}`, or one without selector",
    )


def _selects(selector: Selector | None) -> str:
    if selector is None:
        return "selects everything"
    parts = []
    if selector.match_labels is not None:
        parts.append(f"Pods labelled {selector.match_labels}")
    if selector.command is not None:
        parts.append(f"command {selector.command}")
    if selector.user is not None:
        parts.append(f"user {selector.user}")
    return "selects " + " and ".join(parts)
