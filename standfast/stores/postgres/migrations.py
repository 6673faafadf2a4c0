"""The schema of the PostgreSQL store, as scripts that bring it from one version to the next.

`@` stands for the schema. Columns that are compared by order are in collation "C", which is Python's order of texts. A
session's row is written at every step. Its page has room, and changing columns are not indexed, so such a write does
not touch an index.
"""

MIGRATIONS = (
    """
    CREATE TABLE @agent_sessions (
      id text PRIMARY KEY, agent_name text NOT NULL, state text NOT NULL, user_id text, tenant_id text,
      questions text, workflow_id text, run_key text, usage text, last_seq bigint NOT NULL, version bigint NOT NULL,
      last_write text, created_at timestamptz NOT NULL, updated_at timestamptz NOT NULL
    ) WITH (fillfactor = 70);
    CREATE TABLE @agent_messages (
      session_id text NOT NULL REFERENCES @agent_sessions (id) ON DELETE CASCADE, seq bigint NOT NULL,
      role text NOT NULL, content text NOT NULL, tool_calls text, tool_call_id text, tool_name text, status text,
      usage text, cost double precision, more text, user_id text, tenant_id text, write_key text,
      PRIMARY KEY (session_id, seq)
    );
    CREATE UNIQUE INDEX agent_messages_write ON @agent_messages (session_id, write_key) WHERE write_key IS NOT NULL;
    CREATE TABLE @tool_ledger (
      run_key text NOT NULL, call_key text NOT NULL, state text NOT NULL, owner text, arguments_hash text, result text,
      claimed_at timestamptz, PRIMARY KEY (run_key, call_key)
    );
    CREATE TABLE @running_calls (
      owner text PRIMARY KEY, worker text NOT NULL, task_token text NOT NULL, workflow_id text NOT NULL,
      run_id text NOT NULL
    );
    CREATE TABLE @model_replies (
      run_key text NOT NULL, turn bigint NOT NULL, reply text NOT NULL, PRIMARY KEY (run_key, turn)
    );
    CREATE TABLE @gate_decisions (
      number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, run_key text NOT NULL, gate text NOT NULL,
      at timestamptz NOT NULL, decision text NOT NULL, by text, comment text, digest text, edit text, refused text,
      key text, act_id text, outcome text, UNIQUE (run_key, key)
    );
    CREATE UNLOGGED TABLE @partial_answers (
      run_key text PRIMARY KEY, turn bigint NOT NULL, attempt text COLLATE "C" NOT NULL, text bytea NOT NULL,
      begun_at timestamptz NOT NULL DEFAULT clock_timestamp()
    );
    CREATE TABLE @sessions_at_work (
      session_id text COLLATE "C" PRIMARY KEY, namespace text NOT NULL, workflow_id text NOT NULL, run_key text NOT NULL
    );
    CREATE TABLE @workers (name text PRIMARY KEY);
    CREATE TABLE @holds (
      name text PRIMARY KEY, holder text NOT NULL, since timestamptz NOT NULL DEFAULT clock_timestamp()
    );
    CREATE TABLE @store_identity (id text PRIMARY KEY);
    INSERT INTO @store_identity (id) VALUES (replace(gen_random_uuid()::text, '-', ''));
    """,
    # Rows from before this script get its time. No table is rewritten, but the indexes of the keys are.
    """
    ALTER TABLE @model_replies ALTER COLUMN run_key TYPE text COLLATE "C",
      ADD COLUMN kept_at timestamptz DEFAULT now();
    ALTER TABLE @tool_ledger ALTER COLUMN run_key TYPE text COLLATE "C";
    ALTER TABLE @gate_decisions ALTER COLUMN run_key TYPE text COLLATE "C";
    ALTER TABLE @store_identity ADD COLUMN timed_since timestamptz NOT NULL DEFAULT now();
    CREATE TABLE @noted_runs (
      run_key text PRIMARY KEY, session_id text, namespace text NOT NULL, workflow_id text COLLATE "C" NOT NULL,
      noted_at timestamptz
    );
    CREATE INDEX noted_runs_session ON @noted_runs (session_id) WHERE session_id IS NOT NULL;
    CREATE INDEX noted_runs_workflow ON @noted_runs (workflow_id);
    CREATE INDEX noted_runs_namespace ON @noted_runs (namespace);
    INSERT INTO @noted_runs (run_key, session_id, namespace, workflow_id)
      SELECT run_key, session_id, namespace, workflow_id FROM @sessions_at_work ON CONFLICT DO NOTHING;
    INSERT INTO @noted_runs (run_key, session_id, namespace, workflow_id)
      SELECT split_part(run_key, '/', 1), id, '', workflow_id FROM @agent_sessions
      WHERE strpos(run_key, '/') > 1 AND workflow_id IS NOT NULL ON CONFLICT DO NOTHING;
    """,
    """
    CREATE TABLE @boards (
      namespace text NOT NULL, workflow_id text COLLATE "C" NOT NULL, run_id text NOT NULL, first_run_id text NOT NULL,
      run_key text COLLATE "C" NOT NULL, agent text NOT NULL, task_queue text NOT NULL, at text COLLATE "C" NOT NULL,
      session_id text, tenant_id text, user_id text, parent text, is_watched bigint NOT NULL,
      PRIMARY KEY (namespace, workflow_id)
    );
    CREATE INDEX boards_session ON @boards (session_id) WHERE session_id IS NOT NULL;
    CREATE INDEX boards_run ON @boards (run_key);
    CREATE TABLE @waits (
      namespace text NOT NULL, workflow_id text COLLATE "C" NOT NULL, key text COLLATE "C" NOT NULL,
      kind text NOT NULL, name text NOT NULL, since text COLLATE "C" NOT NULL, due text COLLATE "C" NOT NULL,
      people text NOT NULL, groups text NOT NULL, words text NOT NULL, item text NOT NULL,
      PRIMARY KEY (namespace, workflow_id, key),
      FOREIGN KEY (namespace, workflow_id) REFERENCES @boards (namespace, workflow_id) ON DELETE CASCADE
    );
    CREATE INDEX waits_due ON @waits (namespace, due, since, workflow_id, key);
    CREATE INDEX waits_kind ON @waits (namespace, kind, due, since, workflow_id, key);
    """,
    # A name is found in all its spellings once its run writes its board again. Until then, only case is ignored.
    """
    ALTER TABLE @boards ADD COLUMN owner text;
    UPDATE @boards SET owner = lower(btrim(user_id));
    CREATE INDEX boards_tenant ON @boards (tenant_id);
    CREATE INDEX boards_owner ON @boards (owner);
    """,
    """
    ALTER TABLE @gate_decisions ADD COLUMN standing text, ADD COLUMN remembered text;
    CREATE INDEX gate_decisions_standing ON @gate_decisions (standing) WHERE standing IS NOT NULL;
    CREATE TABLE @standing_approvals (
      id text COLLATE "C" PRIMARY KEY, tenant_id text NOT NULL, agent text NOT NULL, tool text NOT NULL,
      scope_key text NOT NULL, session_id text, owner text NOT NULL, giver text NOT NULL, run_key text NOT NULL,
      since text COLLATE "C" NOT NULL, until text COLLATE "C" NOT NULL, revoked_at text, revoked_by text,
      data text NOT NULL
    );
    CREATE INDEX standing_approvals_tool ON @standing_approvals (agent, tool, scope_key);
    CREATE INDEX standing_approvals_session ON @standing_approvals (session_id);
    """,
)
"""One script per schema version; see `schema_versions`. A test has their digests."""
