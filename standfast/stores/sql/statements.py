"""Statements on sessions, the ledger and replies, in the form that `dialect` describes.

PostgreSQL has its own for most writes, each of which is one round trip.
"""

from standfast.stores.deletion import CLOSED
from standfast.stores.sql.rows import (
    DECISION,
    MESSAGE,
    OF_ANOTHER_RUN,
    RUNNING,
    SESSION,
    WORK,
    WRITTEN,
    columns,
    fields,
)

SESSION_BY_ID = f"SELECT {SESSION} FROM @agent_sessions WHERE id = :id"
SESSIONS = (
    f"SELECT {SESSION} FROM @agent_sessions WHERE (CAST(:agent AS text) IS NULL OR agent_name = :agent)"
    " AND (CAST(:user AS text) IS NULL OR user_id = :user) ORDER BY NEWEST[updated_at]"
)
SOME_SESSIONS = f"{SESSIONS} LIMIT :most"
MESSAGES = f"SELECT {MESSAGE} FROM @agent_messages WHERE session_id = :id AND seq > :after ORDER BY seq"
ROLES = (
    "SELECT m.seq, m.role, s.created_at, s.last_seq FROM @agent_sessions AS s JOIN @agent_messages AS m"
    " ON m.session_id = s.id WHERE s.id = :id ORDER BY m.seq"
)
# Not from a session of the same id that was created again in the meantime.
PRUNE = (
    "DELETE FROM @agent_messages WHERE session_id = :id AND seq < :before AND EXISTS (SELECT 1 FROM @agent_sessions"
    " WHERE id = :id AND created_at = :created AND last_seq >= :last)"
)

ADVANCE = (
    ", ".join(f"{name} = :{name}" for name in (*WRITTEN, "last_write")).replace(":updated_at", ":now")
    + ", version = version + 1"
)
SAVE_SESSION = (
    f"INSERT INTO @agent_sessions ({columns(SESSION)}, last_write) VALUES (:id, :agent_name,"
    f" {', '.join(f':{name}' for name in WRITTEN)}, :count, 1, coalesce(:created, :now), :last_write)"
).replace(":updated_at", ":now") + (f" ON CONFLICT (id) DO UPDATE SET {ADVANCE}, last_seq = last_seq + :count")
COUNT_MESSAGES = "UPDATE @agent_sessions SET last_seq = last_seq + :count, version = version + 1 WHERE id = :id"
LAST_SEQ = "SELECT last_seq FROM @agent_sessions WHERE id = :id"  # RETURNING takes 50 µs more than this

_CALL = "run_key = :scope AND call_key = :call"
_OWN_CALL = f"{_CALL} AND owner = :owner AND state = 'claimed'"
CLAIM = (
    "INSERT INTO @tool_ledger (run_key, call_key, state, owner, arguments_hash, claimed_at)"
    " VALUES (:scope, :call, 'claimed', :owner, :arguments_hash, :now) ON CONFLICT DO NOTHING"
)
ABANDON = f"UPDATE @tool_ledger SET state = 'abandoned' WHERE {_OWN_CALL}"
FINISH = f"UPDATE @tool_ledger SET state = :state, result = :result WHERE {_OWN_CALL}"
SETTLE = (
    "INSERT INTO @tool_ledger (run_key, call_key, state) VALUES (:scope, :call, 'abandoned') ON CONFLICT DO NOTHING"
)
ENTRY_COLUMNS = "state, owner, arguments_hash, result, SINCE[claimed_at] AS since"
ENTRY = f"SELECT {ENTRY_COLUMNS} FROM @tool_ledger WHERE {_CALL}"
ENTRIES = f"SELECT call_key, {ENTRY_COLUMNS} FROM @tool_ledger WHERE run_key = :scope AND call_key AMONG[:calls]"
TAKE_OVER = (
    f"UPDATE @tool_ledger SET owner = :owner, claimed_at = :now WHERE {_CALL} AND state = 'claimed'"
    f" RETURNING {ENTRY_COLUMNS}"
)
# Whether a call has an entry, or its session was not deleted.
IS_OPEN = (
    f"(EXISTS (SELECT 1 FROM @tool_ledger WHERE {_CALL})"
    f" OR NOT EXISTS (SELECT 1 FROM @tool_ledger WHERE run_key = :session AND call_key = '{CLOSED}'))"
)
BEGIN_CALL = (
    f"INSERT OR REPLACE INTO @running_calls ({RUNNING}) VALUES ({', '.join(f':{name}' for name in fields(RUNNING))})"
)
END_CALL = "DELETE FROM @running_calls WHERE owner = :owner"
RUNNING_CALLS = f"SELECT {RUNNING} FROM @running_calls"

SAVE_REPLY = (
    "INSERT INTO @model_replies (run_key, turn, reply, kept_at) VALUES (:run, :turn, :reply, :now)"
    " ON CONFLICT DO NOTHING"
)
REPLY = "SELECT reply FROM @model_replies WHERE run_key = :run AND turn = :turn"
RECORD_DECISION = (
    f"INSERT INTO @gate_decisions ({columns(DECISION)}) VALUES ({', '.join(f':{name}' for name in fields(DECISION))})"
    " ON CONFLICT DO NOTHING"
)
DECISIONS = f"SELECT {DECISION} FROM @gate_decisions WHERE run_key = :run ORDER BY number"

BEGIN_WORK = (
    f"INSERT INTO @sessions_at_work AS w ({columns(WORK)}) VALUES ({', '.join(f':{name}' for name in fields(WORK))})"
    " ON CONFLICT (session_id) DO UPDATE SET namespace = excluded.namespace, workflow_id = excluded.workflow_id,"
    " run_key = excluded.run_key WHERE (w.session_id, w.namespace, w.workflow_id, w.run_key) ="
    " (:old_session_id, :old_namespace, :old_workflow_id, :old_journal_key) RETURNING 1 AS done"
)
END_WORK = (
    "DELETE FROM @sessions_at_work WHERE session_id = :session_id AND namespace = :namespace"
    " AND workflow_id = :workflow_id AND run_key = :journal_key"
)
WORK_ON = f"SELECT {WORK} FROM @sessions_at_work WHERE session_id = coalesce(:id, session_id) ORDER BY session_id"
# The workflow at work on a session whose writer belongs to another run.
SUPERSEDED_BY = (
    f"SELECT workflow_id FROM @sessions_at_work WHERE session_id = :id AND {OF_ANOTHER_RUN.format(':run_key')}"
)
ADD_WORKER = "INSERT INTO @workers VALUES (:name) ON CONFLICT DO NOTHING"
DROP_WORKER = "DELETE FROM @workers WHERE name = :name"
WORKERS = "SELECT name FROM @workers"

EXTEND_WORDS = (
    "UPDATE @partial_answers SET text = substr(text, 1, :offset) || :text"
    " WHERE run_key = :run AND turn = :turn AND attempt = :attempt"
)
# Rows whose workers died and whose runs ended before another worker came.
DROP_OLD_WORDS = "DELETE FROM @partial_answers WHERE AGE[begun_at] > 86400"
BEGIN_WORDS = (
    "INSERT INTO @partial_answers (run_key, turn, attempt, text) VALUES (:run, :turn, :attempt, :text)"
    " ON CONFLICT (run_key) DO UPDATE SET turn = excluded.turn, attempt = excluded.attempt,"
    " text = excluded.text, begun_at = excluded.begun_at"
    " WHERE (excluded.turn, excluded.attempt) > (turn, attempt)"
)
WORDS = (
    "SELECT turn, attempt, at, substr(text, at + 1) AS text FROM"
    " (SELECT *, iif(turn = :turn AND attempt = :attempt, :end, 0) AS at FROM @partial_answers WHERE run_key = :run)"
)
DROP_WORDS = "DELETE FROM @partial_answers WHERE run_key = :run AND (turn, attempt) <= (:turn, :attempt)"
