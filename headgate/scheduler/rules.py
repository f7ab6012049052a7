"""The scheduler's state machine for the whole cluster (Henge, SoCC '18, section 5).

`step(state, view) -> (state, decision)` is pure. The table `TRANSITIONS` holds the rules: the first row whose phase and condition match
decides. A new rule is a condition in `conditions`, an act in `acts`, and a row in `TRANSITIONS`. Rules beyond the paper are marked as
such and explained in docs/decisions.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import Field, dataclass, fields
from typing import Any

from headgate.config import Settings
from headgate.core.metrics import View
from headgate.core.model import SearchPhase
from headgate.core.quantities import show_seconds
from headgate.errors import InvalidTransitionError
from headgate.scheduler import acts as do
from headgate.scheduler import conditions as when
from headgate.scheduler.judgement import judge_last_action, judge_remedies, notice_changes
from headgate.scheduler.memory import Decision, Situation, State
from headgate.scheduler.regulation import NO_ADVICE, PolicyAdvice


def step(state: State, view: View, settings: Settings, advice: PolicyAdvice = NO_ADVICE) -> tuple[State, Decision]:
    """One round: update the state, judge earlier actions, then apply the first rule that matches.

    The view holds the scheduled jobs; the advice holds the findings about self-regulating jobs.
    """
    situation, verdicts = judge_remedies(notice_changes(Situation(state, view, settings, advice=advice)))
    situation = judge_last_action(situation)
    for rule in TRANSITIONS:
        if rule.phase in (None, situation.state.phase) and rule.condition(situation):
            after, decision = rule.act(situation)
            if situation.verdict is not None:
                verdicts = (*verdicts, situation.verdict)
            found = {**advice.diagnoses, **decision.diagnoses}
            return after, dataclasses.replace(
                decision, rule=rule.name, verdicts=verdicts, diagnoses=found, alerts=advice.alerts
            )
    raise InvalidTransitionError(f"no rule fits while {situation.state.phase.value}")


@dataclass(frozen=True, slots=True)
class Rule:
    """One row of the table: the phase and condition under which the rule applies, its act, and the phase afterwards."""

    name: str
    phase: SearchPhase | None
    condition: Callable[[Situation], bool]
    act: Callable[[Situation], do.Result]
    after: SearchPhase | None
    happens: str
    """When the rule applies, in words; braces hold names of settings, shown by their units."""

    def sentence(self, settings: Settings) -> str:
        """When the rule applies, with the numbers of these settings."""
        return self.happens.format_map({one.name: _shown(getattr(settings, one.name), one) for one in fields(Settings)})


def _shown(value: Any, setting: Field[Any]) -> str:
    """The value of a setting with its unit."""
    match setting.metadata.get("unit"):
        case "s":
            return show_seconds(value)
        case "share":
            return f"{value * 100:g} %"
    return str(value)


SEARCHING, CONVERGED, EITHER, SAME = SearchPhase.SEARCHING, SearchPhase.CONVERGED, None, None

# fmt: off
TRANSITIONS: tuple[Rule, ...] = (
    Rule("remedy", EITHER, when.policy_asks_for_remedy, do.apply_remedy, SAME,
         "when the policy of a job that regulates itself asks for a remedy"),
    Rule("regulated", EITHER, when.no_job_is_scheduled, do.leave_to_policies, SAME,
         "when every job regulates itself or cannot be judged"),
    Rule("no data", EITHER, when.no_job_can_be_read, do.wait_for_data, SAME,
         "when no job can be read"),
    Rule("after outage", EITHER, when.gathers_data_after_outage, do.wait_after_outage, SAME,
         "for {outage_data_s} after an outage of measurements"),
    Rule("new workload", EITHER, when.workload_changed, do.start_again, SEARCHING,
         "when a job starts, ends, or changes its intent"),
    Rule("settle", EITHER, when.effect_is_awaited, do.let_settle, SAME,
         "while the effect of the last action is not yet measured"),
    Rule("warm up", EITHER, when.some_job_warms_up, do.warm_up, SAME,
         "while some job has too little data to be judged"),
    Rule("reduce", SEARCHING, when.harmed_and_reducible, do.reduce, SEARCHING,
         "once per search, when the last step caused a loss of utility on a congested cluster"),
    Rule("undo", SEARCHING, when.harmed_while_others_wait, do.undo, SEARCHING,
         "when the last step caused a loss of utility and other jobs wait for help"),
    Rule("revert", EITHER, when.step_did_harm, do.revert, CONVERGED,
         "when the last step caused a loss of utility and no other job waits for help"),
    Rule("overtaken", SEARCHING, when.fell_for_another_reason, do.forget_history, SEARCHING,
         "when utility fell, but not because of the last step"),
    Rule("relax", SEARCHING, when.can_relax, do.relax, SEARCHING,
         "when jobs start epochs more often than their intents need"),
    Rule("return shares", EITHER, when.can_return_shares, do.return_shares, SAME,
         "when jobs with raised shares meet their intents and slots are no longer short"),
    Rule("prevent", EITHER, when.can_prevent_a_miss, do.prevent, SAME,
         "when a job is close to missing its intent and cores are free"),
    Rule("converge", SEARCHING, when.all_met_for_long, do.converge, CONVERGED,
         "when all jobs have met their intents for {stable_rounds} rounds"),
    Rule("hold", SEARCHING, when.all_met, do.count_stable_round, SEARCHING,
         "when all jobs meet their intents, but for fewer than {stable_rounds} rounds"),
    Rule("make room", SEARCHING, when.can_make_room, do.throttle, SEARCHING,
         "when load far exceeds the cores and a job has hopelessly low utility"),
    Rule("reconfigure", SEARCHING, when.can_help_a_job, do.reconfigure, SEARCHING,
         "when a job misses its intent and a remedy, a shorter pace, a larger share or more lanes may help"),
    Rule("catch up", SEARCHING, when.waits_for_recovery, do.wait_for_backlog, SEARCHING,
         "when a job that misses its intent is recovering, or its diagnosis is not clear yet"),
    Rule("throttle", SEARCHING, when.can_throttle, do.throttle, SEARCHING,
         "when a job with hopelessly low utility takes the cores that other jobs lack"),
    Rule("give back", SEARCHING, when.can_return_to_best, do.revert, CONVERGED,
         "when no job can be helped and an earlier configuration was better"),
    Rule("refused", SEARCHING, when.return_is_refused, do.wait_after_refusal, SEARCHING,
         "while the engine refuses the return to a better configuration"),
    Rule("give up", SEARCHING, when.always, do.converge, CONVERGED,
         "when no job can be helped and the current configuration is the best so far"),
    Rule("fell", CONVERGED, when.fell, do.search_again, SEARCHING,
         "when the total utility, or that of a job not set aside, falls by more than {drop}"),
    Rule("rest", CONVERGED, when.always, do.rest, CONVERGED,
         "while no other rule applies"),
)
# fmt: on


def transition_table(settings: Settings) -> str:
    """The table of rules as Markdown, with the numbers of these settings."""
    word: Callable[[SearchPhase | None, str], str] = lambda phase, other: phase.value if phase else other  # noqa: E731
    rows = [
        f"| {r.name} | {word(r.phase, 'either')} | {r.sentence(settings)} | {word(r.after, 'same')} |"
        for r in TRANSITIONS
    ]
    return "\n".join(["| rule | in | happens | then |", "|---|---|---|---|", *rows]) + "\n"
