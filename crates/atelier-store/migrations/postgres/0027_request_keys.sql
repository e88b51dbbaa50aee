-- What a request with an idempotency key did, so that the same request can be sent again.
CREATE TABLE request_keys (
    project_id UUID NOT NULL REFERENCES projects (id),
    caller     TEXT NOT NULL,
    key        TEXT NOT NULL,
    digest     BYTEA NOT NULL,
    answer     TEXT NOT NULL,
    created_at TIMESTAMPTZ NOT NULL,
    PRIMARY KEY (project_id, caller, key)
);
CREATE INDEX request_keys_by_time ON request_keys (created_at);
