CREATE TABLE tenants (
    id          TEXT PRIMARY KEY NOT NULL,
    created_at  TEXT NOT NULL
) STRICT;

CREATE TABLE users (
    id          BLOB PRIMARY KEY NOT NULL,
    tenant_id   TEXT NOT NULL REFERENCES tenants (id),
    created_at  TEXT NOT NULL
) STRICT;

-- Only until they would have expired anyway.
CREATE TABLE revoked_tokens (
    jti         BLOB PRIMARY KEY NOT NULL,
    expires_at  TEXT NOT NULL
) STRICT;

CREATE TABLE sign_in_codes (
    code_hash   BLOB PRIMARY KEY NOT NULL,
    user_id     BLOB NOT NULL,
    tenant_id   TEXT NOT NULL,
    role        TEXT NOT NULL,
    expires_at  TEXT NOT NULL
) STRICT;

-- A deleted project stays as a tombstone until its events have been kept long enough.
CREATE TABLE projects (
    id          BLOB PRIMARY KEY NOT NULL,
    tenant_id   TEXT NOT NULL REFERENCES tenants (id),
    user_id     BLOB NOT NULL REFERENCES users (id),
    name        TEXT NOT NULL,
    workspace   TEXT NOT NULL,
    settings    TEXT NOT NULL,
    created_at  TEXT NOT NULL,
    updated_at  TEXT NOT NULL,
    deleted_at  TEXT
) STRICT;
CREATE UNIQUE INDEX projects_name ON projects (user_id, name) WHERE deleted_at IS NULL;

CREATE TABLE agents (
    id          BLOB PRIMARY KEY NOT NULL,
    project_id  BLOB NOT NULL REFERENCES projects (id),
    name        TEXT NOT NULL,
    status      TEXT NOT NULL,
    config      TEXT NOT NULL,
    created_at  TEXT NOT NULL,
    updated_at  TEXT NOT NULL
) STRICT;
CREATE UNIQUE INDEX agents_name ON agents (project_id, name);
