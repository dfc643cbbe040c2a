"""Whose process it is: proven, or foreign."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from aliquot.agent.core.attribution import MAX_ANCESTORS, Attachment, Attributor, Evidence, ProcessFacts, Roster
from aliquot.agent.core.model import Holder, ProcessKey

LEASE = Holder("l-1", 1, 0)
OTHER = Holder("l-2", 1, 0)
LEAF = "/aliquot/n-1/l-1/1.0"


def facts(
    pid: int, start: int = 100, *, parent: int = 1, group: int = 0, session: int = 0, cgroup: str | None = None
) -> ProcessFacts:
    return ProcessFacts(ProcessKey(pid, start), parent, group or pid, session or pid, cgroup)


def attributor(
    *processes: ProcessFacts,
    attachments: tuple[Attachment, ...] = (),
    proven: dict[ProcessKey, tuple[Holder, ...]] | None = None,
) -> Attributor:
    table = {each.key.pid: each for each in processes}
    return Attributor(table.get, Roster({LEAF: LEASE}, attachments), proven or {})


def attached(
    pid: int, start: int = 100, holder: Holder = LEASE, order: int = 1, *, leads: bool = False, since: int = 105
) -> Attachment:
    return Attachment(holder, ProcessKey(pid, start), order, since, owns_session=leads, owns_group=leads)


def test_a_process_in_the_leaf_or_below_it_is_the_leases() -> None:
    scan = attributor(facts(5, cgroup=LEAF), facts(6, cgroup=f"{LEAF}/made/by/tenant"), facts(7, cgroup=f"{LEAF}0"))
    for pid in (5, 6):
        found = scan.belonging(pid)
        assert found is not None
        assert (found.holders, found.evidence) == ((LEASE,), Evidence.CGROUP)
    assert scan.belonging(7) is None, "a name that only begins alike is another cgroup"


def test_a_reused_pid_is_not_the_process_that_was_attached() -> None:
    scan = attributor(facts(5, start=999), attachments=(attached(5, start=100),))
    assert scan.belonging(5) is None


def test_descendants_of_an_attached_process_are_followed_and_remembered() -> None:
    family = (facts(5), facts(6, 110, parent=5), facts(7, 120, parent=6))
    scan = attributor(*family, attachments=(attached(5),))
    found = scan.belonging(7)
    assert found is not None
    assert found.evidence is Evidence.DESCENDANT
    orphan = attributor(facts(7, 120, parent=1), attachments=(attached(5),), proven=scan.found)
    assert orphan.belonging(7) is not None, "it stays proven after its parents are gone"


def test_a_parent_younger_than_its_child_took_over_the_pid_of_the_real_one() -> None:
    scan = attributor(facts(5, start=500), facts(6, 110, parent=5), attachments=(attached(5, start=500),))
    assert scan.belonging(6) is None


def test_an_orphan_in_a_led_session_counts_only_while_a_proven_member_lives() -> None:
    leader = attached(5, leads=True)
    orphan = facts(8, 130, session=5, group=8)
    with_leader = attributor(facts(5, session=5), orphan, attachments=(leader,))
    found = with_leader.belonging(8)
    assert found is not None
    assert found.evidence is Evidence.SESSION
    assert attributor(orphan, attachments=(leader,)).belonging(8) is None, "nobody vouches for the number 5 any more"
    reused = attributor(facts(5, start=700, session=5), orphan, attachments=(leader,))
    assert reused.belonging(8) is None, "the new session 5 is somebody else's"
    member = facts(9, 120, session=5, group=9)
    with_member = attributor(member, orphan, attachments=(leader,), proven={member.key: (LEASE,)})
    assert with_member.belonging(8) is not None


def test_a_shells_session_is_not_the_leases_when_the_attached_process_does_not_lead_it() -> None:
    scan = attributor(facts(5, session=3), facts(8, 130, session=3), attachments=(attached(5),))
    assert scan.belonging(8) is None


def test_the_latest_attachment_counts_first() -> None:
    both = (attached(5, order=1), attached(5, holder=OTHER, order=2))
    found = attributor(facts(5), attachments=both).belonging(5)
    assert found is not None
    assert found.holders == (OTHER, LEASE)


def test_children_from_before_the_attachment_are_not_meant() -> None:
    family = (facts(5), facts(6, 103, parent=5), facts(7, 120, parent=6), facts(8, 106, parent=5))
    scan = attributor(*family, attachments=(attached(5, since=105),))
    assert scan.belonging(6) is None
    assert scan.belonging(7) is None, "nor what they start later"
    assert scan.belonging(8) is not None


def test_who_was_born_into_one_lease_and_attached_to_another_belongs_to_both() -> None:
    both = (attached(5, order=1), attached(6, start=110, holder=OTHER, order=2, since=115))
    scan = attributor(facts(5), facts(6, 110, parent=5), facts(7, 120, parent=6), attachments=both)
    for pid in (6, 7):
        found = scan.belonging(pid)
        assert found is not None
        assert found.holders == (OTHER, LEASE)


def test_loops_in_what_proc_says_do_not_hang() -> None:
    scan = attributor(facts(5, parent=6), facts(6, parent=5), attachments=(attached(77),))
    assert scan.belonging(5) is None


trees = st.lists(
    st.tuples(st.integers(2, 12), st.integers(1, 50), st.integers(1, 12), st.integers(2, 12), st.integers(2, 12)),
    max_size=10,
    unique_by=lambda row: row[0],
)


@given(trees, st.integers(2, 12), st.integers(1, 50), st.booleans())
def test_nothing_is_attributed_without_a_living_proven_relative(
    rows: list[tuple[int, int, int, int, int]], pid: int, start: int, leads: bool
) -> None:
    table = [facts(own, begun, parent=up, group=group, session=sid) for own, begun, up, group, sid in rows]
    root = ProcessKey(pid, start)
    alive = {each.key for each in table}
    scan = attributor(*table, attachments=(attached(pid, start, leads=leads),))
    for each in table:
        if scan.belonging(each.key.pid) is not None:
            assert root in alive, "the attached process is gone, and nobody was proven before"


def test_who_leads_a_group_only_does_not_own_the_session() -> None:
    leader = Attachment(LEASE, ProcessKey(5, 100), 1, 105, owns_session=False, owns_group=True)
    stranger = facts(8, 130, session=5, group=8)
    assert attributor(facts(5, session=5), stranger, attachments=(leader,)).belonging(8) is None
    of_group = facts(9, 130, session=5, group=5)
    found = attributor(facts(5, session=5), of_group, attachments=(leader,)).belonging(9)
    assert found is not None
    assert found.evidence is Evidence.SESSION


def test_ancestors_are_followed_so_far_and_no_further() -> None:
    chain = [facts(1000 + step, 100 + step, parent=999 + step) for step in range(MAX_ANCESTORS + 2)]
    root = attached(1000, since=100)
    assert attributor(*chain, attachments=(root,)).belonging(1000 + MAX_ANCESTORS) is not None
    assert attributor(*chain, attachments=(root,)).belonging(1001 + MAX_ANCESTORS) is None


def test_orphans_that_init_took_in_are_not_its_descendants() -> None:
    for pid, is_child in ((1, False), (2, True)):
        scan = attributor(facts(pid), facts(6, 110, parent=pid), attachments=(attached(pid),))
        assert (scan.belonging(6) is not None) == is_child


def test_a_child_of_the_same_tick_is_a_child() -> None:
    scan = attributor(facts(5, 110), facts(6, 110, parent=5), attachments=(attached(5, 110, since=110),))
    assert scan.belonging(6) is not None


def test_only_who_was_born_into_a_lease_is_remembered() -> None:
    scan = attributor(facts(5), facts(6, 110, parent=5), attachments=(attached(5),))
    found = scan.belonging(5)
    assert found is not None
    assert found.evidence is Evidence.REGISTERED
    assert not scan.found, "what is attached is known by its attachment"
    scan.belonging(6)
    assert scan.found == {ProcessKey(6, 110): (LEASE,)}


def test_a_cgroup_counts_first_and_other_leases_after_it() -> None:
    family = (facts(5, cgroup=LEAF), facts(6, 110, parent=5, cgroup=LEAF))
    of_other, of_both = attached(5, holder=OTHER, order=2), attached(5, order=1)
    for attachments, child in (((of_other,), (LEASE,)), ((of_other, of_both), (LEASE, OTHER))):
        scan = attributor(*family, attachments=attachments)
        parents, children = scan.belonging(5), scan.belonging(6)
        assert parents is not None
        assert children is not None
        assert parents.holders == (LEASE, OTHER)
        assert (children.holders, children.evidence) == (child, Evidence.CGROUP)


def test_of_two_leases_that_own_a_session_the_latest_counts_first() -> None:
    both = (attached(5, leads=True), attached(5, holder=OTHER, order=2, leads=True))
    found = attributor(facts(5), facts(8, 130, session=5), attachments=both).belonging(8)
    assert found is not None
    assert found.holders == (OTHER, LEASE)
