"""Events between two rounds that change the scheduler's state: late or refused actions, missed rounds, changed hosts."""

from __future__ import annotations

import dataclasses

from headgate.config import Settings
from headgate.core.model import Action, ActionKind, SearchPhase
from headgate.health.resolving import ResolverName
from headgate.scheduler.memory import Refusal, State, without_history
from headgate.scheduler.trials import SEARCH


def carried_out(state: State, action: Action, at_s: float, settings: Settings) -> State:
    """The state after an action was applied late: the scheduler awaits its effect from `at_s` on."""
    trials = state.trials.delay(action.owner, at_s, settings.health_pause_s)
    return dataclasses.replace(state, trials=trials)


def interrupted(state: State) -> State:
    """The state after missed rounds: fresh measurements come first, because a backlog from the gap is no effect of an action."""
    return dataclasses.replace(state, blind=True, sighted_s=None)


def cluster_changed(state: State) -> State:
    """The state after hosts joined or left: actions that did not help before may help now."""
    return dataclasses.replace(without_history(state), skipped={}, refused={}, lanes={})


def withdrawn(state: State, action: Action, at_s: float, settings: Settings, refused: bool = True) -> State:
    """The state after an action was not applied: no effect is awaited, and the scheduler does not ask again for `retry_s`.

    A remedy that the engine `refused` counts as useless, so that the scheduler tries another remedy.
    """
    owner = action.owner
    trial, trials = state.trials.awaited.get(owner), state.trials.end(owner)
    entry, had = (trial.entry, trial.had) if trial is not None else (None, {})
    if refused and entry is not None and (owner != SEARCH or entry.resolver != ResolverName.SCALE_UP):
        trials = trials.remember(dataclasses.replace(entry, useful=False), at_s, settings)
        return dataclasses.replace(state, trials=trials if owner == SEARCH else trials.measure_from(at_s, (owner,)))
    if owner != SEARCH:
        return dataclasses.replace(state, trials=trials.measure_from(at_s + settings.retry_s, (owner,)))
    reduced = state.reduced and action.kind is not ActionKind.REDUCE
    throttled = tuple(name for name in state.throttled if action.kind is not ActionKind.THROTTLE or name != action.job)
    phase = SearchPhase.SEARCHING if action.kind is ActionKind.REVERT else state.phase
    refusals = {name: Refusal(at_s + settings.retry_s, had.get(name)) for name in action.changes}
    return dataclasses.replace(
        state, trials=trials, phase=phase, reduced=reduced, throttled=throttled, refused={**state.refused, **refusals}
    )
