"""The lease book: one holder a unit, ids of their own, nothing for who came too late."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.devices.lease import Lease, LeaseBook
from infra.errors import LeaseLost

pytestmark = pytest.mark.unit

UNITS = ("a", "b", "c", "d")
ACTION = st.one_of(
    st.tuples(st.just("grant"), st.sets(st.sampled_from(UNITS), min_size=1), st.integers(1, 5)),
    st.tuples(st.just("renew"), st.integers(0, 9), st.integers(1, 5)),
    st.tuples(st.just("release"), st.integers(0, 9), st.just(0)),
    st.tuples(st.just("expire"), st.just(0), st.integers(0, 4)),
)


def granted(
    book: LeaseBook,
    units: str,
    holder: str = "h",
    driver: str = "d",
    ttl: float = 10,
    now: float = 0,
):
    lease = book.grant(units, holder, driver, ttl, now)
    assert lease is not None
    return lease


@given(st.lists(ACTION, max_size=40))
@settings(max_examples=200, deadline=None)
def test_no_unit_ever_has_two_holders_and_no_id_is_given_twice(actions) -> None:
    book, now, seen = LeaseBook(), 0.0, list[Lease]()
    alive: dict[str, Lease] = {}  # the model: unit -> lease
    for name, what, amount in actions:
        if name == "grant":
            lease = book.grant(sorted(what), "h", "d", amount, now)
            assert (lease is None) == any(unit in alive for unit in what)
            if lease is not None:
                assert all(lease.id != other.id for other in seen)
                seen.append(lease)
                alive |= dict.fromkeys(lease.units, lease)
        elif name == "expire":
            now += amount
            for lease in book.end_lost(now):
                assert lease.expires <= now
                alive = {u: x for u, x in alive.items() if x.id != lease.id}
        elif what < len(seen):
            lease = seen[what]
            held = alive.get(lease.units[0])
            owns = held is not None and held.id == lease.id
            if name == "release":
                if owns:
                    book.release(lease.id)
                    alive = {u: x for u, x in alive.items() if x.id != lease.id}
                else:
                    with pytest.raises(LeaseLost):
                        book.release(lease.id)
            elif owns and held.expires > now:
                renewed = book.renew(lease.id, amount, now)
                alive |= dict.fromkeys(renewed.units, renewed)
            else:
                with pytest.raises(LeaseLost):
                    book.renew(lease.id, amount, now)
        assert {u: book.holder_of(u) for u in UNITS} == {u: alive.get(u) for u in UNITS}
    assert set(book.leases) == set(alive.values())


def test_a_grant_is_all_or_nothing() -> None:
    book = LeaseBook()
    granted(book, "ab")
    assert book.grant("bc", "other", "d", 10, 0) is None
    assert book.holder_of("c") is None


def test_an_expired_unit_stays_held_until_its_owner_ends_the_lease() -> None:
    book = LeaseBook()
    lease = granted(book, "a", ttl=10)
    assert book.grant("a", "other", "d", 10, now=11) is None
    assert book.end_lost(now=11) == (lease,)
    assert granted(book, "a", "other", now=11).id != lease.id


def test_a_lease_ends_with_its_driver_before_its_time_is_up() -> None:
    book = LeaseBook()
    lost, kept = granted(book, "a", driver="dead"), granted(book, "b", driver="alive")
    assert book.end_lost(1, {"dead"}) == (lost,)
    assert book.leases == (kept,)


def test_a_late_renewal_is_refused_even_before_the_unit_is_reclaimed() -> None:
    book = LeaseBook()
    lease = granted(book, "a", ttl=10)
    with pytest.raises(LeaseLost, match=r"expired 2\.0 s ago"):
        book.renew(lease.id, 10, now=12)


def test_who_comes_with_a_lease_that_ended_can_neither_renew_nor_release() -> None:
    book = LeaseBook()
    old = granted(book, "a")
    book.release(old.id)
    new = granted(book, "a")
    with pytest.raises(LeaseLost, match="lease again"):
        book.renew(old.id, 10, now=1)
    with pytest.raises(LeaseLost, match="lease again"):
        book.release(old.id)
    assert book.holder_of("a") == new


def test_a_lease_of_nothing_is_a_programming_error() -> None:
    with pytest.raises(ValueError, match="at least one unit"):
        LeaseBook().grant([], "h", "d", 10, 0)


def test_a_sole_lease_excludes_others_on_its_gpus_and_none_of_its_own_holder() -> None:
    book = LeaseBook()
    sole = book.grant(["rank-0"], "a", "", 60, 0, frozenset({0, 1}), is_sole=True)
    plain = book.grant(["rank-1"], "b", "", 60, 0, frozenset({2}))
    assert sole is not None
    assert plain is not None
    assert sole.excludes("b", frozenset({1}), is_sole=False)
    assert not sole.excludes("a", frozenset({1}), is_sole=True)
    assert not sole.excludes("b", frozenset({2}), is_sole=True)
    assert plain.excludes("a", frozenset({2}), is_sole=True)
    assert not plain.excludes("a", frozenset({2}), is_sole=False)
    assert not sole.excludes("b", frozenset(), is_sole=True), "on a CPU"
