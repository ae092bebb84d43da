"""Groups of the policy and of experts in one exact ratio, also when there are few."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rft_core.buffer import Wanted
from rft_core.catalog import Candidate
from rft_core.errors import ConfigError
from rft_core.types import Source
from tests.buffer.selection.choices import build, slots
from tests.buffer.table import Table, append_varied


def fill(table: Table, sources: str) -> None:
    """A group a letter: of the policy, an expert or a human; each a version older than the one before it."""
    of = {"p": Source.POLICY, "e": Source.EXPERT, "h": Source.HUMAN}
    groups = [{"source": of[letter], "policy_version": len(sources) - slot} for slot, letter in enumerate(sources)]
    if groups:
        append_varied(table, "a", groups)


def chosen(table: Table, sources: str, frac: float, count: int, step: int = 1) -> tuple[str, dict[str, int]]:
    """The letters of a batch in its order, and what was left out."""
    if not table.count("groups"):
        fill(table, sources)
        table.take_over()
    claim = table.choose(step, build("expert_mix", expert_frac=frac), 1, count=count, version=len(sources))
    return "".join(sources[slot] for slot in slots(table, claim)), dict(claim.left_out)


@pytest.mark.parametrize(
    ("sources", "frac", "count", "batch", "left_out"),
    [
        ("ppppppee", 0.25, 8, "pppeppp" + "e", {}),
        ("pppppppeee", 0.25, 8, "pppepppe", {}),  # more than enough: the rest waits, and was not looked at
        ("ppppee", 0.5, 4, "pepe", {}),
        ("pppee", 0.4, 5, "pppee", {}),  # 2 to 3 has no smaller part
        ("ppee", 0.0, 4, "pp", {}),
        ("ppee", 1.0, 4, "ee", {}),
    ],
)
def test_the_ratio_is_exact_in_every_part_of_the_batch(
    sources: str, frac: float, count: int, batch: str, left_out: dict[str, int], table: Table
) -> None:
    assert chosen(table, sources, frac, count) == (batch, left_out)


@pytest.mark.parametrize(
    ("sources", "frac", "count", "batch", "left_out"),
    [
        ("ppppppe", 0.25, 8, "pppe", {"no_expert_group_to_mix_with": 3}),
        ("ppppee", 0.25, 8, "pppe", {"no_policy_group_to_mix_with": 1, "no_expert_group_to_mix_with": 1}),
        ("pppppp", 0.25, 8, "", {"no_expert_group_to_mix_with": 6}),
        ("ee", 0.25, 8, "", {"no_policy_group_to_mix_with": 2}),
        ("pppp", 0.4, 5, "", {"no_expert_group_to_mix_with": 3}),
        ("", 0.25, 8, "", {}),
    ],
)
def test_a_short_batch_has_the_ratio_too_and_says_what_was_missing(
    sources: str, frac: float, count: int, batch: str, left_out: dict[str, int], table: Table
) -> None:
    assert chosen(table, sources, frac, count) == (batch, left_out)


def test_what_was_left_out_is_there_for_the_next_step(table: Table) -> None:
    assert chosen(table, "pppe" + "ppp", 0.25, 8)[0] == "pppe"
    (later,) = table.lease(1, step=2)
    table.append("later", [later], source=Source.EXPERT)
    claim = table.choose(2, build("expert_mix"), 1, count=4)
    assert table.ask(f"select source, count(*) as n from experiences where group_id in {claim.group_ids} group by 1 order by 1") == [
        {"source": "expert", "n": 2},
        {"source": "policy", "n": 6},
    ]


def test_the_oldest_of_each_kind_come_first_and_humans_are_experts_too(table: Table) -> None:
    """Slots are from new to old; the human's group is older than two of the experts'."""
    fill(table, "peephpp")
    claim = table.choose(1, build("expert_mix", expert_frac=0.5), table.take_over(), count=4, version=7)
    assert slots(table, claim) == [6, 4, 5, 2]


def test_stale_groups_do_not_count(table: Table) -> None:
    fill(table, "pppeppp")
    claim = table.choose(1, build("expert_mix"), table.take_over(), count=4, version=7, max_staleness=3)
    assert slots(table, claim) == [2, 1, 0, 3]
    assert claim.left_out == {"stale": 3}


@given(st.text("pe", max_size=12), st.sampled_from([0.1, 0.25, 0.3, 0.5, 0.9]), st.integers(2, 9))
@settings(max_examples=200, deadline=None)
def test_no_choice_has_another_ratio(sources: str, frac: float, count: int) -> None:
    groups = [
        Candidate(str(slot), 1, slot, 0, "ready", "policy" if letter == "p" else "expert", 0.0, 0, 0) for slot, letter in enumerate(sources)
    ]

    class Waiting:
        def by(self, order: str, source: str | None = None) -> object:
            assert order == "oldest"
            return (group for group in groups if group.source == source)

    batch = build("expert_mix", expert_frac=frac).choose(Waiting(), Wanted(1, count)).groups
    experts = sum(group.source == "expert" for group in batch)
    wanted = min(max(round(count * frac), 1), count - 1)
    assert experts * (count - wanted) == (len(batch) - experts) * wanted
    assert len(set(batch)) == len(batch) <= count
    assert batch or not min(sources.count("e") // wanted, sources.count("p") // (count - wanted))


def test_a_small_batch_has_one_of_each_kind(table: Table) -> None:
    """A quarter of two is nearest to none: experts would wait for ever."""
    assert chosen(table, "pppe", 0.25, 2)[0] == "pe"


@pytest.mark.parametrize("frac", [-0.1, 1.5, "half"])
def test_a_share_that_is_none_is_refused(frac: object) -> None:
    with pytest.raises(ConfigError, match=r"^selection\.args\.expert_frac: found"):
        build("expert_mix", expert_frac=frac)
