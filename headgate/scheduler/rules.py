"""Who gets help, and did it help? The state machine of Henge (SoCC '18, section 5), for the cluster as a whole.

`step(state, view) -> (state, decision)` is pure. The rules are the table `TRANSITIONS`, read from the top: the first row whose
phase and condition fit decides. A new rule is a condition in `conditions`, an act in `acts`, and a row here. What goes beyond the
paper is marked as such and argued in docs/decisions.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

from headgate.config import Settings
from headgate.core.metrics import View
from headgate.core.quantities import show_seconds
from headgate.errors import InvalidTransitionError
from headgate.scheduler import acts as do
from headgate.scheduler import conditions as when
from headgate.scheduler.judgement import judge_last_action, notice_changes
from headgate.scheduler.memory import Decision, SearchPhase, Situation, State


def step(state: State, view: View, settings: Settings) -> tuple[State, Decision]:
    """One round: bookkeeping, then the first rule of the table that fits."""
    situation = judge_last_action(notice_changes(Situation(state, view, settings)))
    for rule in TRANSITIONS:
        if rule.phase in (None, situation.state.phase) and rule.condition(situation):
            after, decision = rule.act(situation)
            return after, dataclasses.replace(decision, rule=rule.name, verdict=situation.verdict)
    raise InvalidTransitionError(f"no rule fits while {situation.state.phase.value}")


@dataclass(frozen=True, slots=True)
class Rule:
    """One row: in this phase, under this condition, do this."""

    name: str
    phase: SearchPhase | None
    condition: Callable[[Situation], bool]
    act: Callable[[Situation], do.Result]
    after: SearchPhase | None
    happens: str
    """When the rule applies; settings stand in braces."""

    def sentence(self, settings: Settings) -> str:
        """When the rule applies, with the numbers of these settings."""
        return self.happens.format(
            outage_data_s=show_seconds(settings.outage_data_s),
            stable_rounds=settings.stable_rounds,
            drop=f"{settings.drop * 100:g} %",
        )


SEARCHING, CONVERGED, EITHER, SAME = SearchPhase.SEARCHING, SearchPhase.CONVERGED, None, None

# fmt: off
TRANSITIONS: tuple[Rule, ...] = (
    Rule("no data", EITHER, when.no_job_can_be_read, do.wait_for_data, SAME,
         "when no job can be read: nothing is decided in the dark"),
    Rule("after outage", EITHER, when.gathers_data_after_outage, do.wait_after_outage, SAME,
         "for {outage_data_s} after measurements came back"),
    Rule("new workload", EITHER, when.workload_changed, do.start_again, SEARCHING,
         "when a job comes, goes, or changes its intent"),
    Rule("settle", EITHER, when.effect_is_awaited, do.let_settle, SAME,
         "while the last action's effect is not yet measured"),
    Rule("warm up", EITHER, when.some_job_warms_up, do.warm_up, SAME,
         "while some job has too little data to be judged"),
    Rule("reduce", SEARCHING, when.harmed_and_reducible, do.reduce, SEARCHING,
         "once per workload, when a step did harm on a congested cluster"),
    Rule("undo", SEARCHING, when.harmed_while_others_wait, do.undo, SEARCHING,
         "when a step did harm, and others have not had their turn"),
    Rule("revert", EITHER, when.step_did_harm, do.revert, CONVERGED,
         "when a step did harm and no other job waits for help"),
    Rule("overtaken", SEARCHING, when.fell_for_another_reason, do.forget_history, SEARCHING,
         "when the total fell in spite of a step, not because of it"),
    Rule("relax", SEARCHING, when.can_relax, do.relax, SEARCHING,
         "when jobs start epochs more often than their intents need"),
    Rule("prevent", EITHER, when.can_prevent_a_miss, do.prevent, SAME,
         "when a job is about to miss its intent and cores are free"),
    Rule("converge", SEARCHING, when.all_met_for_long, do.rest, CONVERGED,
         "when all intents have held for {stable_rounds} rounds"),
    Rule("hold", SEARCHING, when.all_met, do.count_stable_round, SEARCHING,
         "when all intents hold, but not yet for long"),
    Rule("make room", SEARCHING, when.can_make_room, do.throttle, SEARCHING,
         "when far more lanes want to run than cores can, and a job is hopeless"),
    Rule("reconfigure", SEARCHING, when.can_help_a_job, do.reconfigure, SEARCHING,
         "when a job misses its intent and lanes or pace may help it"),
    Rule("catch up", SEARCHING, when.waits_for_recovery, do.wait_for_backlog, SEARCHING,
         "when a job has what it needs and its backlog will soon be gone"),
    Rule("throttle", SEARCHING, when.can_throttle, do.throttle, SEARCHING,
         "when a hopeless job takes the cores that others lack"),
    Rule("give back", SEARCHING, when.can_return_to_best, do.revert, CONVERGED,
         "when no job can be helped and an earlier configuration was better"),
    Rule("refused", SEARCHING, when.return_is_refused, do.wait_after_refusal, SEARCHING,
         "while the way to a better configuration is refused"),
    Rule("give up", SEARCHING, when.always, do.rest, CONVERGED,
         "when no job can be helped and this is the best so far"),
    Rule("fell", CONVERGED, when.fell, do.search_again, SEARCHING,
         "when the total or a job that was fine loses more than {drop}"),
    Rule("rest", CONVERGED, when.always, do.stay, CONVERGED,
         "as long as nothing changes"),
)
# fmt: on


def transition_table(settings: Settings) -> str:
    """The table as Markdown, for docs and readers, with the numbers of these settings."""
    word: Callable[[SearchPhase | None, str], str] = lambda phase, other: phase.value if phase else other  # noqa: E731
    rows = [
        f"| {r.name} | {word(r.phase, 'either')} | {r.sentence(settings)} | {word(r.after, 'same')} |"
        for r in TRANSITIONS
    ]
    return "\n".join(["| rule | in | happens | then |", "|---|---|---|---|", *rows]) + "\n"
