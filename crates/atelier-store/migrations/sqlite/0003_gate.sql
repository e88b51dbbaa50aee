-- A call is kept whole in `record`; the columns beside it are what it is looked up by.
CREATE TABLE tool_calls (
    id          BLOB PRIMARY KEY NOT NULL,
    project_id  BLOB NOT NULL,
    approval_id BLOB,
    status      TEXT NOT NULL,
    deadline    TEXT,
    record      TEXT NOT NULL
) STRICT;
CREATE INDEX tool_calls_by_project ON tool_calls (project_id, id);
CREATE INDEX tool_calls_by_approval ON tool_calls (approval_id) WHERE approval_id IS NOT NULL;
CREATE INDEX tool_calls_due ON tool_calls (deadline) WHERE deadline IS NOT NULL;

-- Of those whose lease is good, the first to connect runs the project's calls.
CREATE TABLE clients (
    id           BLOB PRIMARY KEY NOT NULL,
    project_id   BLOB NOT NULL,
    root         TEXT NOT NULL,
    os           TEXT NOT NULL,
    isolation    TEXT NOT NULL,
    connected_at TEXT NOT NULL,
    lease_until  TEXT NOT NULL
) STRICT;
CREATE INDEX clients_by_project ON clients (project_id, connected_at);

CREATE TABLE grants (
    id           BLOB PRIMARY KEY NOT NULL,
    project_id   BLOB NOT NULL,
    session      BLOB NOT NULL,
    withdrawn_at TEXT,
    record       TEXT NOT NULL
) STRICT;
CREATE INDEX grants_by_session ON grants (project_id, session);

-- Every decision about a call: who, when, from where, about what exactly.
CREATE TABLE audit (
    id          BLOB PRIMARY KEY NOT NULL,
    project_id  BLOB NOT NULL,
    record      TEXT NOT NULL
) STRICT;
CREATE INDEX audit_by_project ON audit (project_id, id);
