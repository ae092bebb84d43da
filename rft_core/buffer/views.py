"""The views that questions are asked about, and what is behind those that are over other relations."""

from collections.abc import Mapping

from rft_core.buffer.labels import Combine

Derived = tuple[str, tuple[str, ...]]
"""A question, and the relations that it asks."""

VIEWS = {
    "experiences": "every stored row, with the `step` it was sampled for, its group's `fate` (which a pinned state has not), what was said "
    "of it since (`labelled_reward`), and what the run's pipeline made of it: `shaped_reward`, `dropped_by`, `drop_reason`",
    "attempts": "the last row of each attempt that did not fail, with `final_reward`: shaped, else labelled, else raw",
    "groups": "one row a group: task, step, size, status, reason, what it waits for, priority, uses, the step that trained it first",
    "leases": "one row a lease, as issued",
    "fates": "one row a lease with its one fate",
    "ledger": "one row a fate: how many leases have it; they add up to the leases issued",
    "labels": "one row a label: what an author said of an experience, its newest version last",
    "supervised": "the rows that experts and people wrote: what supervised fine-tuning learns from",
    "preferences": "one row a group whose attempts differ: the best answer `chosen`, the worst `rejected`",
    "steps": "one row a committed step: status, version, checkpoint, times, and `metrics` as JSON",
    "claims": "one row a step: its batch, the state that it is read at, and what was left out, by reason",
    "evaluations": "one row a scored version of a held-out set, `metrics` as JSON",
    "answers": "one row a scored answer to a held-out task",
    "weights": "one row a version",
    "segments": "one row a file of experiences",
    "snapshots": "one row a pinned state of the table",
}
"""What `rft sql` can be asked about."""

STATE_VIEWS = ("experiences", "attempts", "labels", "supervised", "preferences")
"""Those that a state of the table has, which is one of rows, labels and overlays; all else is known as it is now only."""

LABELLED: Mapping[Combine, str] = {
    "newest": "select experience_id, arg_max(value, sequence) as labelled_reward from labels where field = 'reward' group by 1",
    "mean": "select experience_id, favg(last) as labelled_reward from (select experience_id, author, arg_max(value, sequence) as last "
    "from labels where field = 'reward' group by 1, 2) group by 1",
}
"""The label of the reward that counts, by experience; as in `rft_core.buffer.labels.combined`."""

_SHAPED = """
select experience_id, unnest(arg_max({shaped_reward: shaped_reward, dropped_by: dropped_by, drop_reason: drop_reason}, sequence))
from _overlay group by 1"""

_EXPERIENCES = """
select e.*, g.step, g.slot, {fate}l.labelled_reward, o.shaped_reward, o.dropped_by, o.drop_reason
from _stored e join _slots g using (group_id) {join_fates}
left join _labelled l on l.experience_id = e.experience_id
left join _shaped o on o.experience_id = e.experience_id"""

DERIVED: dict[str, Derived] = {
    "_shaped": (_SHAPED, ("_overlay",)),
    "groups": ("select * from _slots", ("_slots",)),
    "experiences": (
        _EXPERIENCES.format(fate="f.fate, ", join_fates="join fates f on f.lease_id = e.lease_id"),
        ("_stored", "_slots", "fates", "_labelled", "_shaped"),
    ),
    "attempts": (
        """
with told as (
    select * replace (last_value(labelled_reward ignore nulls) over attempt_rows as labelled_reward),
           turn_index = max(turn_index) over attempt_rows as is_last
    from experiences
    window attempt_rows as (
        partition by group_id, attempt order by turn_index rows between unbounded preceding and unbounded following))
select * exclude (is_last), coalesce(shaped_reward, labelled_reward, reward) as final_reward from told where is_last and error is null""",
        ("experiences",),
    ),
    "supervised": ("select * from experiences where source in ('expert', 'human') and error is null", ("experiences",)),
    "preferences": (
        """
with ranked as (
    select *, row_number() over (partition by group_id order by final_reward desc, attempt) as best,
           row_number() over (partition by group_id order by final_reward, attempt desc) as worst
    from attempts where final_reward is not null and dropped_by is null)
select c.group_id, c.task_id, c.step, c.prompt_text, c.response_text as chosen, r.response_text as rejected,
       c.experience_id as chosen_id, r.experience_id as rejected_id, c.tokens as chosen_tokens, r.tokens as rejected_tokens,
       c.prompt_length, c.final_reward - r.final_reward as margin
from ranked c join ranked r using (group_id) where c.best = 1 and r.worst = 1 and c.final_reward > r.final_reward""",
        ("attempts",),
    ),
}
"""What each view asks that is over other relations."""
DERIVED_AT_A_STATE: Mapping[str, Derived] = DERIVED | {
    "experiences": (_EXPERIENCES.format(fate="", join_fates=""), ("_stored", "_slots", "_labelled", "_shaped")),
}
"""The same at a state."""
