"""Errors that Ray has no name for; each is a kind of one that it has, so that programs written for Ray catch it."""

from ray.exceptions import RayActorError


class UpgradeRefused(ValueError):
    """An actor goes on with the code that it has; the text says why."""


class NondeterminismError(RayActorError):  # type: ignore[misc]
    """The actor's replay did not do what its first run had done, and the actor was stopped; the text says where."""
