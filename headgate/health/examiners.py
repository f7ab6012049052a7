"""The interface between the control loop and a health policy, in-process or isolated."""

from __future__ import annotations

import dataclasses
from typing import Protocol

from headgate.health.examining import Examination, History, examine
from headgate.health.policies import HealthPolicy
from headgate.health.records import ObservedJob


class SwitchedOffError(Exception):
    """Raised when a policy gave no usable answer; the message says why."""


class Examiner(Protocol):
    """A health policy, in-process or isolated."""

    @property
    def invasive(self) -> bool:
        """Whether the policy may change the jobs whose intents name it."""

    def examine(self, history: History, observed: ObservedJob) -> Examination:
        """Examine one job; raises `SwitchedOffError` if the policy fails and must be switched off for a while."""


@dataclasses.dataclass(frozen=True, slots=True)
class BuiltInPolicy:
    """A built-in policy, called in-process."""

    policy: HealthPolicy

    @property
    def invasive(self) -> bool:
        return self.policy.invasive

    def examine(self, history: History, observed: ObservedJob) -> Examination:
        return examine(history, self.policy, observed)
