"""What happens to the scheduler between two rounds: actions carried out late or refused, missed rounds, other hosts."""

from __future__ import annotations

import dataclasses

from headgate.config import Settings
from headgate.core.model import Action, ActionKind
from headgate.health.resolving import ResolverName
from headgate.scheduler.judgement import with_log_entry
from headgate.scheduler.memory import Refusal, SearchPhase, State, without_history


def carried_out(state: State, at_s: float) -> State:
    """The state when an action was carried out later than it was decided: its effect is awaited from then on."""
    trial = state.trial
    return state if trial is None else dataclasses.replace(state, trial=dataclasses.replace(trial, at_s=at_s))


def interrupted(state: State) -> State:
    """The state after rounds were missed: what piled up since is not the effect of an action."""
    return dataclasses.replace(state, blind=True, sighted_s=None)


def cluster_changed(state: State) -> State:
    """The state when hosts came or went: what did not help before may help now."""
    return dataclasses.replace(without_history(state), skipped={}, refused={}, lanes={})


def withdrawn(state: State, action: Action, at_s: float, settings: Settings, refused: bool = True) -> State:
    """The state when an action was not carried out: there is no effect to wait for, and it is not asked for again for a while.

    A remedy that the engine `refused` counts as useless, so that another has its turn.
    """
    tried, had = (state.trial.tried, state.trial.had) if state.trial is not None else (None, {})
    if refused and tried is not None and tried.resolver != ResolverName.SCALE_UP:
        return with_log_entry(dataclasses.replace(state, trial=None), tried, False, at_s, settings)
    reduced = state.reduced and action.kind is not ActionKind.REDUCE
    throttled = tuple(name for name in state.throttled if action.kind is not ActionKind.THROTTLE or name != action.job)
    phase = SearchPhase.SEARCHING if action.kind is ActionKind.REVERT else state.phase
    refusals = {name: Refusal(at_s + settings.retry_s, had.get(name)) for name in action.changes}
    return dataclasses.replace(
        state, trial=None, phase=phase, reduced=reduced, throttled=throttled, refused={**state.refused, **refusals}
    )
