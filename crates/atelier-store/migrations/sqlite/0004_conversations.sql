-- A chat session is a conversation: one table, two doors. Its files and messages hang on it.
CREATE TABLE conversations (
    id                   BLOB PRIMARY KEY NOT NULL,
    project_id           BLOB NOT NULL REFERENCES projects (id),
    tenant_id            TEXT NOT NULL REFERENCES tenants (id),
    user_id              BLOB NOT NULL REFERENCES users (id),
    title                TEXT,
    status               TEXT NOT NULL,
    workspace_enabled    INTEGER NOT NULL,
    workspace_path       TEXT,
    workspace_created_at TEXT,
    created_at           TEXT NOT NULL,
    updated_at           TEXT NOT NULL
) STRICT;
CREATE INDEX conversations_by_project ON conversations (project_id, id);
CREATE INDEX conversations_by_user ON conversations (user_id, id);
