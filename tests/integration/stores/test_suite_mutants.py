"""The store suite finds the single fault of each faulty store, and names the check."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support import faulty_boards, faulty_deletions, faulty_ledgers, faulty_standing_approvals, faulty_stores

from standfast import InputError, StandfastError
from standfast.stores import SQLiteStore
from standfast.testing import holds, store_suite


def reopen(store: SQLiteStore) -> Any:
    return partial(type(store), store._path)


SUITE = {
    check.__name__: check
    for check in store_suite(
        deletion=True, waits=True, standing_approvals=True, reopen=reopen, interrupt=faulty_stores.interrupt
    )
}
INTERRUPTED = sorted(
    SUITE.keys()
    - {check.__name__ for check in store_suite(deletion=True, waits=True, standing_approvals=True, reopen=reopen)}
)

FOUND = {
    faulty_ledgers.LooksThenClaims: ["of_many_that_claim_a_call_one_owns_it"],
    faulty_ledgers.ClaimsWhatIsOld: ["a_clock_that_is_wrong_gives_no_call_away"],
    faulty_ledgers.SettlesInTwoSteps: ["a_call_that_is_settled_while_it_is_claimed_is_claimed_or_abandoned_for_all"],
    faulty_ledgers.SettlesWithoutAFence: ["settling_fences_a_call_that_never_started"],
    faulty_ledgers.TakesOverWhatHasEnded: ["who_has_lost_a_call_records_nothing_and_hears_so"],
    faulty_ledgers.FinishesForAnybody: ["only_the_owner_of_a_claim_records_its_result"],
    faulty_ledgers.FinishesInTwoSteps: ["who_has_lost_a_call_records_nothing_and_hears_so"],
    faulty_ledgers.AbandonsWhatIsAnothers: ["a_call_that_has_not_happened_is_given_up_by_its_owner"],
    faulty_ledgers.LeavesRunningCalls: ["a_running_call_is_known_from_its_claim_to_its_result"],
    faulty_ledgers.EndsAllCallsOfAWorker: ["calls_that_end_beside_others_leave_only_those_that_run"],
    faulty_ledgers.KeepsTheLastReply: ["of_many_replies_to_a_turn_one_is_kept"],
    faulty_ledgers.AppendsWhoeverReplied: ["of_many_replies_that_are_appended_one_is_kept_with_its_messages"],
    faulty_ledgers.LooksThenRecordsADecision: ["of_many_decisions_with_one_key_one_is_recorded"],
    faulty_ledgers.LooksThenBeginsWork: ["of_many_workflows_one_is_at_work_and_one_takes_the_place_of_another"],
    faulty_ledgers.LooksWhoIsAtWorkThenAppends: ["once_a_run_has_followed_another_that_one_writes_nothing"],
    faulty_ledgers.LetsEndedRunsAnswer: ["a_run_that_another_has_followed_writes_nothing"],
    faulty_ledgers.DropsAllWorkers: ["workers_that_come_and_go_at_once_are_each_known_once"],
    faulty_stores.AppendsWithoutComparing: ["a_second_writer_is_refused_and_nothing_is_interleaved"],
    faulty_stores.ComparesThenAppends: [
        "of_many_writers_that_know_the_same_messages_one_writes",
        "of_many_writers_that_know_the_same_version_one_writes",
    ],
    faulty_stores.IgnoresWriteKeys: [
        "the_same_write_key_again_changes_nothing",
        "writes_of_a_process_that_was_killed_are_made_again_and_there_once",
    ],
    faulty_stores.LooksForTheKeyThenAppends: ["a_write_that_is_repeated_while_it_is_made_is_made_once"],
    faulty_stores.AppendsOneByOne: ["writes_of_many_are_whole_and_none_is_lost"],
    faulty_stores.AppendsInTwoTransactions: ["deleting_beside_writers_leaves_a_whole_session_or_none"],
    faulty_stores.AcknowledgesBeforeItWrites: ["writes_of_a_process_that_was_killed_are_made_again_and_there_once"],
    faulty_stores.RefusesWhoIsLate: ["a_clock_that_is_wrong_lets_the_next_writer_write"],
    faulty_stores.CutsTexts: ["large_texts_and_many_messages_are_kept_whole"],
    faulty_stores.CutsAtNul: ["a_text_that_no_database_keeps_is_kept_or_refused_and_harms_no_other"],
    faulty_stores.PrunesInTwoSteps: ["pruning_beside_writers_loses_only_what_is_old"],
    faulty_stores.DeletesOnlyTheSession: [
        "deleting_a_session_deletes_its_messages",
        "deleting_beside_writers_leaves_a_whole_session_or_none",
    ],
    faulty_stores.HoldsOfAnObject: ["of_many_who_take_a_hold_one_has_it"],
    faulty_stores.HoldsOfAProcess: ["a_hold_is_seen_by_all_and_ended_by_its_holder_alone"],
    faulty_stores.HoldsThatOutliveProcesses: ["holds_of_a_process_that_is_killed_are_free_and_others_stay"],
    faulty_stores.HoldsThatAnybodyEnds: ["a_hold_is_seen_by_all_and_ended_by_its_holder_alone"],
    faulty_stores.HoldsByTheHoldersClock: ["a_clock_that_is_wrong_ends_no_hold"],
    faulty_stores.HoldsThatAreLost: [
        "who_has_lost_a_session_to_another_does_not_write_to_it",
        "a_worker_that_others_take_for_dead_begins_no_call",
    ],
    faulty_stores.IdentityOfAnObject: ["a_store_has_one_identity_for_all_also_if_many_make_it_at_once"],
    faulty_stores.ServesOneLoop: ["a_store_serves_event_loops_that_end"],
    faulty_standing_approvals.GivesInTwoSteps: ["a_standing_approval_comes_with_its_decision"],
    faulty_standing_approvals.GivesWhatWasRevoked: [
        "a_standing_approval_is_given_once",
        "a_revoked_standing_approval_stays_revoked",
    ],
    faulty_standing_approvals.FindsThoseOfAllTenants: ["standing_approvals_are_found_by_what_they_are_for"],
    faulty_standing_approvals.FindsWhatWasRevoked: ["a_revoked_standing_approval_stays_revoked"],
    faulty_standing_approvals.KeepsThoseOfDeletedSessions: ["those_of_a_deleted_session_are_gone"],
    faulty_deletions.KeepsWhatRunsHaveKept: ["deleting_a_session_leaves_no_text_of_it"],
    faulty_deletions.ForgetsItsFences: ["a_call_of_a_deleted_session_is_not_run_again"],
    faulty_deletions.FencesAsIfNothingHadRun: ["a_call_of_a_deleted_session_is_not_run_again"],
    faulty_deletions.LetsOwnersFinish: ["a_call_of_a_deleted_session_is_not_run_again"],
    faulty_deletions.DeletesByBeginning: ["deleting_a_session_leaves_those_with_similar_names"],
    faulty_deletions.KeepsComments: ["decisions_of_a_deleted_session_can_be_kept_without_texts"],
    faulty_deletions.DeletesWhoDeleted: ["who_deleted_a_session_stays"],
    faulty_deletions.DeletesOnlyTheCaller: ["sessions_of_agents_that_it_called_go_with_a_session"],
    faulty_deletions.NotesOneRun: ["a_run_is_noted_once"],
    faulty_deletions.ListsWithoutRegardToCase: ["records_are_listed_by_their_keys"],
    faulty_deletions.DropsWhatIsYoung: ["records_are_dropped_when_all_of_them_are_old"],
    faulty_deletions.DropsInADryRun: ["records_are_dropped_when_all_of_them_are_old"],
    faulty_deletions.DropsByBeginning: ["records_are_dropped_when_all_of_them_are_old"],
    faulty_deletions.DropsOpenCalls: ["old_calls_of_a_session_are_dropped_up_to_a_message"],
    faulty_boards.ShowsWhatIsLate: ["who_is_late_changes_nothing"],
    faulty_boards.ForgetsWhoWasLast: ["who_is_late_changes_nothing"],
    faulty_boards.TakesNothingOut: ["a_run_shows_exactly_what_it_says"],
    faulty_boards.LooksThenShows: ["of_many_who_write_a_board_the_last_is_shown"],
    faulty_boards.SaysNothingIsMissing: ["a_run_shows_exactly_what_it_says"],
    faulty_boards.SearchesByPattern: ["items_are_found_by_what_they_are"],
    faulty_boards.OrdersByKey: ["items_are_ordered_by_deadline_and_read_in_pages"],
    faulty_boards.CountsAll: ["items_are_found_by_what_they_are"],
    faulty_boards.TakesNoTenantsForAll: ["items_are_found_by_whose_they_are"],
    faulty_boards.CountsForEveryOwner: ["items_are_found_by_whose_they_are"],
    faulty_boards.ForgetsOtherNamespaces: ["empty_boards_are_forgotten_when_they_are_old"],
    faulty_boards.KeepsBoardsOfDeletedSessions: ["the_board_of_a_deleted_session_is_gone"],
    faulty_stores.StaysClosed: ["a_store_that_was_closed_opens_again"],
}


@pytest.mark.slow(but=2)
@pytest.mark.parametrize(
    ("store_type", "check"),
    [(store_type, check) for store_type, checks in FOUND.items() for check in checks],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
async def test_a_fault_is_found(store_type: Any, check: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holds, "PATIENCE", 1.0)
    store = store_type(tmp_path / "faulty.db")
    try:
        with pytest.raises((AssertionError, StandfastError, RuntimeError)):
            await SUITE[check](store)
    finally:
        await SQLiteStore.close(store)


@pytest.mark.parametrize("check", INTERRUPTED)
async def test_a_store_that_is_interrupted_passes(check: str, tmp_path: Path) -> None:
    async with faulty_stores.InterruptedStore(tmp_path / "interrupted.db") as store:
        await SUITE[check](store)


def test_a_durable_store_is_not_checked_without_others_who_use_its_data() -> None:
    with pytest.raises(InputError, match="needs reopen="):
        store_suite()
