"""Checks of a store that shows the items that runs wait for."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

from standfast.stores import Board, ShownWait, Wait, WaitFilter
from standfast.stores.waits import searchable
from standfast.testing.expectations import expect

_AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
ALL = WaitFilter(namespace="default")


def later(seconds: float) -> datetime:
    return _AT + timedelta(seconds=seconds)


def board_of(workflow_id: str = "greeter/s1", at: float = 0, **fields: Any) -> Board:
    known = {"namespace": "default", "run_id": "r1", "first_run_id": "r1", "journal_key": "r1"}
    ours = {"agent": "greeter", "task_queue": "standfast", "workflow_id": workflow_id, "at": later(at)}
    return Board(**{**known, **ours, **fields})


def wait_of(key: str = "k1", **fields: Any) -> Wait:
    return Wait(
        **{"key": key, "kind": "approval", "name": key, "since": _AT, "item": '{"name": "' + key + '"}', **fields}
    )


async def keys(store: Any, wanted: WaitFilter = ALL, **options: Any) -> list[str]:
    return [one.wait.key for one in await store.waits(wanted, **options)]


def wanting(**fields: Any) -> WaitFilter:
    return WaitFilter(namespace="default", **fields)


async def what_is_shown_is_read_as_it_was(store: Any) -> None:
    board = board_of(session="t/s1", tenant_id="t", user_id="ada", parent="parent/x", is_watched=True)
    wait = wait_of(
        deadline=later(0.25),
        people=("ada", 'bob\n"x"'),
        groups=("leads", "'; --"),
        words="naïve 🙂 100% _",
        item='{"a": 1}',
    )
    nobody, anybody = wait_of("k2", deadline=later(1), people=()), wait_of("k3", name="naïve 🙂\0", people=None)
    expect(await store.show_waits(board, [wait, nobody, anybody]), [], "show_waits")
    expect(await store.waits(ALL), [ShownWait(board=board, wait=one) for one in (wait, nobody, anybody)], "waits")
    expect(await store.waits(WaitFilter(namespace="other")), [], "waits of another namespace")
    expect(await store.boards("default"), [(board, 3)], "boards")
    expect(await store.load_board("default", board.workflow_id), board, "load_board")
    expect(await store.load_board("other", board.workflow_id), None, "load_board of another namespace")


async def a_run_shows_exactly_what_it_says(store: Any) -> None:
    await store.show_waits(board_of("greeter/s2"), [wait_of("other")])
    await store.show_waits(board_of(), [wait_of("k1"), wait_of("k2")])
    expect(await store.show_waits(board_of(at=1), [wait_of("k3")], ["k2"]), [], "show_waits")
    expect(await keys(store), ["k2", "k3", "other"], "waits")
    expect(await store.show_waits(board_of(at=2), [], ["k2", "gone"]), ["gone"], "marked entries that are missing")
    await store.show_waits(board_of(at=3), [])
    expect(await keys(store), ["other"], "waits after a run's entries were removed")
    expect([number for _, number in await store.boards("default")], [0, 1], "the items of boards")


async def what_is_shown_twice_is_there_once(store: Any) -> None:
    for _ in range(2):
        expect(await store.show_waits(board_of(), [wait_of("k1")], []), [], "show_waits")
    expect(await keys(store), ["k1"], "waits")
    expect(await store.count_waits(ALL), {"approval": 1}, "count_waits")


async def who_is_late_changes_nothing(store: Any) -> None:
    await store.show_waits(board_of(at=1, run_id="r2"), [wait_of("new")])
    expect(
        await store.show_waits(board_of(at=0.999999), [wait_of("old")], ["gone"]), [], "show_waits of an earlier state"
    )
    expect(await keys(store), ["new"], "waits")
    await store.show_waits(board_of(at=2, run_id="r2"), [])
    await store.show_waits(board_of(at=1), [wait_of("old")])
    expect(await keys(store), [], "waits after a late write to an empty board")


async def of_many_who_write_a_board_the_last_is_shown(store: Any) -> None:
    for number in range(5):
        run = f"greeter/{number}"
        writes = [(board_of(run, at), [wait_of(f"{at}a"), wait_of(f"{at}b")]) for at in range(12)]
        await asyncio.gather(*(store.show_waits(board, put) for board, put in reversed(writes)))
        expect(await keys(store, wanting(workflow_id=run)), ["11a", "11b"], "waits")


async def items_are_ordered_by_deadline_and_read_in_pages(store: Any) -> None:
    for number in range(9):
        deadline = None if number % 3 == 0 else later(100 - number % 5)
        waits = [
            wait_of(f"k{number}", deadline=deadline, since=later(number // 4)),
            wait_of(f"z{number}", deadline=deadline),
        ]
        await store.show_waits(
            board_of(f"greeter/{number % 4}", at=number), waits, [f"k{number - 4}", f"z{number - 4}"]
        )
    whole = await store.waits(ALL)
    ends = datetime.max.replace(tzinfo=UTC)
    order = [(one.wait.deadline or ends, one.wait.since, one.board.workflow_id, one.wait.key) for one in whole]
    expect(order, sorted(order), "the order of items")
    pages, after = list[ShownWait](), None
    while found := await store.waits(ALL, after=after, limit=5):
        after = found[-1].place
        pages += found
    expect(pages, whole, "the pages")
    await store.show_waits(board_of(whole[1].board.workflow_id, at=99), [])
    left = [one for one in whole[2:] if one.board.workflow_id != whole[1].board.workflow_id]
    expect(await store.waits(ALL, after=whole[1].place), left, "the page after an item that is gone")


async def items_are_found_by_what_they_are(store: Any) -> None:
    ship = wait_of(
        "ship", people=("ada", "bob"), groups=("leads", "shop"), words=searchable("Ship 100% of Ärger_1", "O'Neil")
    )
    ask = wait_of("ask", kind="question", since=later(60), words=searchable("which\\one?"))
    stuck = wait_of("stuck", kind="store", people=(), words=searchable("ship 1000"))
    await store.show_waits(board_of(tenant_id="t"), [ship])
    await store.show_waits(board_of("clerk/s1", agent="clerk"), [ask, stuck])
    for found, filters in (
        (["ask"], {"kind": "question"}),
        (["ask", "stuck"], {"agent": "clerk"}),
        (["ship"], {"tenant_id": "t"}),
        (["ship"], {"group": "shop"}),
        ([], {"group": "sho"}),
        ([], {"group": "%"}),
        (["ask", "ship"], {"person": "ada"}),
        (["ask"], {"person": 'ada\n"bob'}),
        (["stuck"], {"person": "ada", "others": True}),
        (["ship"], {"person": "ada", "person_kinds": ("approval",)}),
        (["ask", "stuck"], {"person": "ada", "person_kinds": ("approval",), "others": True}),
        ([], {"person": "ada", "person_kinds": ()}),
        (["ship", "stuck"], {"text": "SHIP"}),
        (["ship"], {"text": "ship 100%"}),
        (["ship"], {"text": "ärger_1 o'neil"}),
        ([], {"text": "ä%r"}),
        (["ask"], {"text": "which\\one"}),
        ([], {"text": "\0"}),
        (["ship", "stuck"], {"before": later(59)}),
        (["ask", "stuck"], {"workflow_id": "clerk/s1"}),
    ):
        expect(sorted(await keys(store, wanting(**filters))), found, f"waits with {filters}")
        expect(sum((await store.count_waits(wanting(**filters))).values()), len(found), f"count_waits with {filters}")
    expect(await store.count_waits(ALL), {"approval": 1, "question": 1, "store": 1}, "count_waits")


async def items_are_found_by_whose_they_are(store: Any) -> None:
    for number, (tenant, user) in enumerate(
        [("a", "Ada"), ("a", "bob"), ("b", "ada"), ("b", None), (None, "ada"), ("a'b", "ada")]
    ):
        board = board_of(f"greeter/{number}", tenant_id=tenant, user_id=user, at=number)
        await store.show_waits(board, [wait_of(f"k{number}", kind="question" if number % 2 else "approval")])
    for found, filters in (
        (["k0", "k1"], {"tenants": ("a",)}),
        (["k0", "k1", "k2", "k3"], {"tenants": ("a", "b")}),
        (["k5"], {"tenants": ("a'b",)}),
        ([], {"tenants": ()}),
        ([], {"tenants": ("A", "%", "")}),
        (["k2", "k3"], {"tenants": ("a", "b"), "tenant_id": "b"}),
        (["k0", "k2", "k4", "k5"], {"owner": "ada"}),
        (["k0", "k2"], {"owner": "ada", "tenants": ("a", "b")}),
        (["k1"], {"owner": "bob", "kind": "question"}),
        ([], {"owner": ""}),
        ([], {"owner": "nobody"}),
        (["k0"], {"owner": "ada", "tenants": ("a",), "person": "ada", "person_kinds": ("approval",)}),
        ([], {"owner": "ada", "tenants": ("a",), "person": "ada", "others": True}),
    ):
        expect(sorted(await keys(store, wanting(**filters))), found, f"waits with {filters}")
        expect(sum((await store.count_waits(wanting(**filters))).values()), len(found), f"count_waits with {filters}")
    await store.show_waits(board_of("greeter/0", tenant_id="a", user_id="eve", at=9), [], ["k0"])
    expect(await keys(store, wanting(owner="eve")), ["k0"], "waits of a run that now has another user")


async def empty_boards_are_forgotten_when_they_are_old(store: Any) -> None:
    await store.show_waits(board_of("a", at=1), [])
    await store.show_waits(board_of("b", at=1), [wait_of()])
    await store.show_waits(board_of("c", at=3), [])
    await store.show_waits(board_of("d", at=1, namespace="other"), [])
    await store.forget_boards("default", later(2))
    expect([board.workflow_id for board, _ in await store.boards("default")], ["b", "c"], "boards")
    expect([board.workflow_id for board, _ in await store.boards("default", after="b")], ["c"], "boards after one")
    expect([board.workflow_id for board, _ in await store.boards("default", limit=1)], ["b"], "boards, one of them")
    expect(len(await store.boards("other")), 1, "boards of another namespace")


async def the_board_of_a_deleted_session_is_gone(store: Any) -> None:
    await store.show_waits(board_of(session="s1"), [wait_of("mine")])
    await store.show_waits(board_of("greeter/s2", session="s2"), [wait_of("other")])
    await store.delete_session("s1")
    expect(await keys(store), ["other"], "waits")
    expect([board.workflow_id for board, _ in await store.boards("default")], ["greeter/s2"], "boards")


BOARDS = [
    what_is_shown_is_read_as_it_was,
    a_run_shows_exactly_what_it_says,
    what_is_shown_twice_is_there_once,
    who_is_late_changes_nothing,
    of_many_who_write_a_board_the_last_is_shown,
    items_are_ordered_by_deadline_and_read_in_pages,
    items_are_found_by_what_they_are,
    items_are_found_by_whose_they_are,
    empty_boards_are_forgotten_when_they_are_old,
    the_board_of_a_deleted_session_is_gone,
]
