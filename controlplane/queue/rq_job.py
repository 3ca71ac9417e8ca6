"""Jobs that name one of our functions; RQ itself runs whatever a job's record in the server names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

from rq.job import Job

from controlplane.queue.port import JobName


class ForeignJob(Exception):
    """The record of a job names something that is no job: somebody else writes to the server."""


class KnownJob(Job):
    """``functions``: the package that holds the jobs. Anything else, callbacks included, is not even imported."""

    functions = ""

    @property
    def func(self) -> Callable[..., Any]:
        if self.instance is not None or self.func_name not in self._known():
            raise ForeignJob(f"Job {self.id} names {str(self.func_name)[:120]!r}, which is no job.")
        found: Callable[..., Any] = super().func
        return found

    @property
    def success_callback(self) -> None:
        return None

    @property
    def failure_callback(self) -> None:
        return None

    @property
    def stopped_callback(self) -> None:
        return None

    def _known(self) -> set[str]:
        return {f"{self.functions}.{name}" for name in get_args(JobName)}


def jobs_of(package: str) -> type[KnownJob]:
    """The class of jobs whose functions ``package`` holds."""
    return type("KnownJob", (KnownJob,), {"functions": package})
