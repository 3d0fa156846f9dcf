"""Errors a user can act on: one sentence each, with the exit code the command line ends on."""

from __future__ import annotations


class K3LabError(Exception):
    """Base of every error k3lab raises on purpose; its text is one clear sentence."""

    exit_code = 4


class BadInput(K3LabError):
    """The caller's input is wrong: says what, what was expected, what came, and how to fix it."""

    exit_code = 2


class BackendUnavailable(K3LabError):
    """A backend cannot run here: says which and why."""

    exit_code = 3


class InternalFault(K3LabError):
    """k3lab found a deadlock, a race or a broken promise of its own."""

    exit_code = 4


def expect(condition: object, what: str, expected: object, got: object, fix: str = "") -> None:
    """Raise `BadInput` naming `what`, what was `expected` and what was `got`, unless `condition` holds.

    Raises:
        BadInput: when `condition` is false.
    """
    if not condition:
        raise BadInput(f"{what}: expected {expected}, got {got}{'; ' + fix if fix else ''}.")
