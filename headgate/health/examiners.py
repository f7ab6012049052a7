"""What the control loop asks of a policy, wherever the policy runs."""

from __future__ import annotations

import dataclasses
from typing import Protocol

from headgate.health.care import Care, Examination, examine
from headgate.health.policies import HealthPolicy
from headgate.health.records import Patient


class SwitchedOffError(Exception):
    """A policy gave no usable answer; the sentence says what it did."""


class Examiner(Protocol):
    """A policy, wherever it runs."""

    @property
    def invasive(self) -> bool:
        """Whether it may change the jobs that name it in their intents."""

    def examine(self, care: Care, patient: Patient) -> tuple[Care, Examination]:
        """One step for one job; raises `SwitchedOffError` if the policy is not to be asked for a while."""


@dataclasses.dataclass(frozen=True, slots=True)
class BuiltInPolicy:
    """A policy of Headgate's own, asked directly."""

    policy: HealthPolicy

    @property
    def invasive(self) -> bool:
        return self.policy.invasive

    def examine(self, care: Care, patient: Patient) -> tuple[Care, Examination]:
        return examine(care, self.policy, patient)
