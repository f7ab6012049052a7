"""The live table of a running service: the simulator's screen with wall-clock times and the jobs that do not run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.text import Text

from headgate.cli.output import time_of_day
from headgate.core.metrics import View
from headgate.core.model import Action
from headgate.ports import JobPhase, JobState
from headgate.screen import SPARK_CELLS, Screen, intents_met, table, thin_out
from headgate.server.starting import starts_in_words

if TYPE_CHECKING:
    from headgate.server.service import Watcher

STYLES: Mapping[JobPhase, str] = {JobPhase.FAILED: "red", JobPhase.RETRYING: "yellow"}
ROUNDS_PER_LINE = 10


class ServiceScreen(Screen):
    """A watcher that shows rounds in a live table, and messages as lines above the table."""

    def __init__(self, console: Console, round_s: float) -> None:
        super().__init__(console, clock=time_of_day, line_every_s=ROUNDS_PER_LINE * round_s)
        self._states: Mapping[str, JobState] = {}

    def round(self, view: View, phase: str, action: Action | None, states: Mapping[str, JobState]) -> None:
        """Handle the end of a round of the control loop."""
        self._states = states
        self.show(view, phase, action)

    def tell(self, at_s: float, job: str, text: str, epoch: int | None = None) -> None:
        """Handle a message about a job, or about the service if `job` is empty."""
        line = f"{time_of_day(at_s)}  {job or 'headgate'}: {text}"
        self.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def _jobs_line(self, view: View) -> str:
        wanted = [state for state in self._states.values() if state.phase is not JobPhase.PAUSED]
        others = Counter(state.phase.value for state in self._states.values() if state.phase is not JobPhase.RUNNING)
        return intents_met([job.met for job in view.jobs.values()], len(wanted), others)

    def _picture(self, view: View, phase: str) -> RenderableType:
        stopped = list(_stopped(self._states))
        recent = thin_out(self._history, SPARK_CELLS)
        height = self.console.height - 1 - len(stopped)
        return Group(table(view, phase, recent, list(self._actions), height, self.clock(view.at_s)), *stopped)


def _stopped(states: Mapping[str, JobState]) -> Iterable[Text]:
    """A line for each job that does not run; jobs that wait for their first start are counted in one line."""
    started = starts_in_words(states)
    if started:
        yield Text(f" {started}", "yellow")
    for name, state in states.items():
        if state.phase is not JobPhase.RUNNING and (state.phase is not JobPhase.STARTING or state.reason):
            state_line = f" {name}  {state.phase.value}{f': {state.reason}' if state.reason else ''}"
            yield Text(state_line, STYLES.get(state.phase, "dim"), no_wrap=True, overflow="ellipsis")


class Steadfast:
    """A watcher that survives a full output: lines that cannot be written are lost, and the loss is reported once.

    A closed output still ends the service, because no reader is left.
    """

    def __init__(self, watcher: Watcher, complain: Callable[[str], None]) -> None:
        self._watcher, self._complain = watcher, complain
        self._complained = False

    def round(self, view: View, phase: str, action: Action | None, states: Mapping[str, JobState]) -> None:
        """Handle the end of a round of the control loop."""
        with self._tried():
            self._watcher.round(view, phase, action, states)

    def tell(self, at_s: float, job: str, text: str, epoch: int | None = None) -> None:
        """Handle a message about a job, or about the service if `job` is empty."""
        with self._tried():
            self._watcher.tell(at_s, job, text, epoch)

    @contextmanager
    def _tried(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            raise
        except OSError as error:
            if not self._complained:
                self._complain(f"the output cannot be written ({error.strerror or error}); the jobs go on without it")
            self._complained = True
