"""Errors that Ray has no name for; each is a kind of one that it has, so that programs written for Ray catch it."""

from ray.exceptions import RayActorError, RayError


class UpgradeRefused(ValueError):
    """An actor goes on with the code that it has; the text says why."""


class NondeterminismError(RayActorError):  # type: ignore[misc]
    """A replay did not do what the first run had done, and the actor or the script was stopped; the text says where."""


class RunInUseError(RayError):  # type: ignore[misc]
    """Another process lives the run that this script was to resume."""


class RunFinishedError(RayError):  # type: ignore[misc]
    """The run that this script was to resume has come to its end."""


class LineageLost(RayError):  # type: ignore[misc]
    """More nodes failed at once than the bound allows, and this script depends on what was lost."""
