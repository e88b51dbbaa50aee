CREATE TABLE tenants (
    id          TEXT PRIMARY KEY,
    created_at  TIMESTAMPTZ NOT NULL
);

CREATE TABLE users (
    id          UUID PRIMARY KEY,
    tenant_id   TEXT NOT NULL REFERENCES tenants (id),
    created_at  TIMESTAMPTZ NOT NULL
);

-- Only until they would have expired anyway.
CREATE TABLE revoked_tokens (
    jti         UUID PRIMARY KEY,
    expires_at  TIMESTAMPTZ NOT NULL
);

CREATE TABLE sign_in_codes (
    code_hash   BYTEA PRIMARY KEY,
    user_id     UUID NOT NULL,
    tenant_id   TEXT NOT NULL,
    role        TEXT NOT NULL,
    expires_at  TIMESTAMPTZ NOT NULL
);

-- A deleted project stays as a tombstone until its events have been kept long enough.
-- JSON is kept as text: it is never queried, and jsonb refuses \u0000, which JSON allows.
CREATE TABLE projects (
    id          UUID PRIMARY KEY,
    tenant_id   TEXT NOT NULL REFERENCES tenants (id),
    user_id     UUID NOT NULL REFERENCES users (id),
    name        TEXT NOT NULL,
    workspace   TEXT NOT NULL,
    settings    TEXT NOT NULL,
    created_at  TIMESTAMPTZ NOT NULL,
    updated_at  TIMESTAMPTZ NOT NULL,
    deleted_at  TIMESTAMPTZ
);
CREATE UNIQUE INDEX projects_name ON projects (user_id, name) WHERE deleted_at IS NULL;

CREATE TABLE agents (
    id          UUID PRIMARY KEY,
    project_id  UUID NOT NULL REFERENCES projects (id),
    name        TEXT NOT NULL,
    status      TEXT NOT NULL,
    config      TEXT NOT NULL,
    created_at  TIMESTAMPTZ NOT NULL,
    updated_at  TIMESTAMPTZ NOT NULL
);
CREATE UNIQUE INDEX agents_name ON agents (project_id, name);
