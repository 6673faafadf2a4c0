"""The schema of the SQLite store, as scripts that bring a file from one version to the next."""

MIGRATIONS = (
    """
    CREATE TABLE agent_sessions (
      id TEXT PRIMARY KEY, agent_name TEXT NOT NULL, state TEXT NOT NULL, user_id TEXT, tenant_id TEXT,
      questions TEXT, workflow_id TEXT, run_key TEXT, last_seq INTEGER NOT NULL, version INTEGER NOT NULL,
      last_write TEXT, created_at TEXT NOT NULL, updated_at TEXT NOT NULL
    ) STRICT;
    CREATE TABLE agent_messages (
      session_id TEXT NOT NULL REFERENCES agent_sessions (id) ON DELETE CASCADE, seq INTEGER NOT NULL,
      role TEXT NOT NULL, content TEXT NOT NULL, tool_calls TEXT, tool_call_id TEXT, tool_name TEXT, status TEXT,
      usage TEXT, cost REAL, user_id TEXT, tenant_id TEXT, write_key TEXT,
      PRIMARY KEY (session_id, seq)
    ) STRICT;
    CREATE UNIQUE INDEX agent_messages_write ON agent_messages (session_id, write_key) WHERE write_key IS NOT NULL;
    CREATE TABLE tool_ledger (
      run_key TEXT NOT NULL, call_key TEXT NOT NULL, state TEXT NOT NULL, owner TEXT, arguments_hash TEXT, result TEXT,
      PRIMARY KEY (run_key, call_key)
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE running_calls (
      owner TEXT PRIMARY KEY, worker TEXT NOT NULL, task_token TEXT NOT NULL, workflow_id TEXT NOT NULL,
      run_id TEXT NOT NULL
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE model_replies (
      run_key TEXT NOT NULL, turn INTEGER NOT NULL, reply TEXT NOT NULL, PRIMARY KEY (run_key, turn)
    ) STRICT, WITHOUT ROWID;
    """,
    """
    CREATE TABLE gate_decisions (
      number INTEGER PRIMARY KEY, run_key TEXT NOT NULL, gate TEXT NOT NULL, at TEXT NOT NULL, decision TEXT NOT NULL,
      by TEXT, comment TEXT, digest TEXT, edit TEXT, refused TEXT, key TEXT, UNIQUE (run_key, key)
    ) STRICT;
    """,
    "ALTER TABLE agent_messages ADD COLUMN more TEXT;",
    "ALTER TABLE agent_sessions ADD COLUMN usage TEXT;",
    """
    CREATE TABLE partial_answers (
      run_key TEXT PRIMARY KEY, turn INTEGER NOT NULL, attempt TEXT NOT NULL, text TEXT NOT NULL
    ) STRICT;
    """,
    # Created again, since only some files have the column below in it. Nothing is lost: its rows matter only for
    # seconds, while a model streams.
    """
    DROP TABLE partial_answers;
    CREATE TABLE partial_answers (
      run_key TEXT PRIMARY KEY, turn INTEGER NOT NULL, attempt TEXT NOT NULL, text TEXT NOT NULL,
      begun_at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP
    ) STRICT;
    """,
    """
    ALTER TABLE tool_ledger ADD COLUMN claimed_at TEXT;
    CREATE TABLE sessions_at_work (
      session_id TEXT PRIMARY KEY, namespace TEXT NOT NULL, workflow_id TEXT NOT NULL, run_key TEXT NOT NULL
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE workers (name TEXT PRIMARY KEY) STRICT, WITHOUT ROWID;
    """,
    """
    ALTER TABLE gate_decisions ADD COLUMN act_id TEXT;
    ALTER TABLE gate_decisions ADD COLUMN outcome TEXT;
    """,
    """
    CREATE TABLE store_identity (id TEXT NOT NULL, path TEXT, inode TEXT) STRICT;
    INSERT INTO store_identity (id) VALUES (lower(hex(randomblob(16))));
    """,
    # Rows from before this script get its time.
    """
    ALTER TABLE model_replies ADD COLUMN kept_at TEXT;
    ALTER TABLE store_identity ADD COLUMN timed_since TEXT;
    UPDATE store_identity SET timed_since = strftime('%Y-%m-%dT%H:%M:%f+00:00', 'now');
    CREATE TABLE noted_runs (
      run_key TEXT PRIMARY KEY, session_id TEXT, namespace TEXT NOT NULL, workflow_id TEXT NOT NULL, noted_at TEXT
    ) STRICT, WITHOUT ROWID;
    CREATE INDEX noted_runs_session ON noted_runs (session_id) WHERE session_id IS NOT NULL;
    CREATE INDEX noted_runs_workflow ON noted_runs (workflow_id);
    CREATE INDEX noted_runs_namespace ON noted_runs (namespace);
    INSERT OR IGNORE INTO noted_runs (run_key, session_id, namespace, workflow_id)
      SELECT run_key, session_id, namespace, workflow_id FROM sessions_at_work;
    INSERT OR IGNORE INTO noted_runs (run_key, session_id, namespace, workflow_id)
      SELECT substr(run_key, 1, instr(run_key, '/') - 1), id, '', workflow_id FROM agent_sessions
      WHERE instr(run_key, '/') > 1 AND workflow_id IS NOT NULL;
    """,
    """
    CREATE TABLE boards (
      namespace TEXT NOT NULL, workflow_id TEXT NOT NULL, run_id TEXT NOT NULL, first_run_id TEXT NOT NULL,
      run_key TEXT NOT NULL, agent TEXT NOT NULL, task_queue TEXT NOT NULL, at TEXT NOT NULL, session_id TEXT,
      tenant_id TEXT, user_id TEXT, parent TEXT, is_watched INTEGER NOT NULL, PRIMARY KEY (namespace, workflow_id)
    ) STRICT, WITHOUT ROWID;
    CREATE INDEX boards_session ON boards (session_id) WHERE session_id IS NOT NULL;
    CREATE INDEX boards_run ON boards (run_key);
    CREATE TABLE waits (
      namespace TEXT NOT NULL, workflow_id TEXT NOT NULL, key TEXT NOT NULL, kind TEXT NOT NULL, name TEXT NOT NULL,
      since TEXT NOT NULL, due TEXT NOT NULL, people TEXT NOT NULL, groups TEXT NOT NULL, words TEXT NOT NULL,
      item TEXT NOT NULL, PRIMARY KEY (namespace, workflow_id, key),
      FOREIGN KEY (namespace, workflow_id) REFERENCES boards (namespace, workflow_id) ON DELETE CASCADE
    ) STRICT;
    CREATE INDEX waits_due ON waits (namespace, due, since, workflow_id, key);
    CREATE INDEX waits_kind ON waits (namespace, kind, due, since, workflow_id, key);
    """,
    # A name is found in all its spellings once its run writes its board again. Until then, only case is ignored.
    """
    ALTER TABLE boards ADD COLUMN owner TEXT;
    UPDATE boards SET owner = lower(trim(user_id));
    CREATE INDEX boards_tenant ON boards (tenant_id);
    CREATE INDEX boards_owner ON boards (owner);
    """,
    """
    ALTER TABLE gate_decisions ADD COLUMN standing TEXT;
    ALTER TABLE gate_decisions ADD COLUMN remembered TEXT;
    CREATE INDEX gate_decisions_standing ON gate_decisions (standing) WHERE standing IS NOT NULL;
    CREATE TABLE standing_approvals (
      id TEXT PRIMARY KEY, tenant_id TEXT NOT NULL, agent TEXT NOT NULL, tool TEXT NOT NULL, scope_key TEXT NOT NULL,
      session_id TEXT, owner TEXT NOT NULL, giver TEXT NOT NULL, run_key TEXT NOT NULL, since TEXT NOT NULL,
      until TEXT NOT NULL, revoked_at TEXT, revoked_by TEXT, data TEXT NOT NULL
    ) STRICT, WITHOUT ROWID;
    CREATE INDEX standing_approvals_tool ON standing_approvals (agent, tool, scope_key);
    CREATE INDEX standing_approvals_session ON standing_approvals (session_id);
    """,
    """
    ALTER TABLE store_identity ADD COLUMN mark TEXT;
    ALTER TABLE store_identity ADD COLUMN writes INTEGER NOT NULL DEFAULT 0;
    """,
)
"""One script per schema version; see `schema_versions`. A test has their digests."""
