"""The schema of the PostgreSQL store, as scripts that bring it from one version to the next.

`@` stands for the schema. What is compared by order is in collation "C", which is Python's order of texts. A session's
row is written at every step; with room in its page, and no index of what changes, no index is written to.
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
)
"""One script per schema version; see `schema_versions`. A test has their digests."""
