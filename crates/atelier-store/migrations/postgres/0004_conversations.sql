-- A chat session is a conversation: one table, two doors. Its files and messages hang on it.
CREATE TABLE conversations (
    id                   UUID PRIMARY KEY,
    project_id           UUID NOT NULL REFERENCES projects (id),
    tenant_id            TEXT NOT NULL REFERENCES tenants (id),
    user_id              UUID NOT NULL REFERENCES users (id),
    title                TEXT,
    status               TEXT NOT NULL,
    workspace_enabled    BOOLEAN NOT NULL,
    workspace_path       TEXT,
    workspace_created_at TIMESTAMPTZ,
    created_at           TIMESTAMPTZ NOT NULL,
    updated_at           TIMESTAMPTZ NOT NULL
);
CREATE INDEX conversations_by_project ON conversations (project_id, id);
CREATE INDEX conversations_by_user ON conversations (user_id, id);
