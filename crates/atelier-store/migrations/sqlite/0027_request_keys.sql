-- What a request with an idempotency key did, so that the same request can be sent again.
CREATE TABLE request_keys (
    project_id BLOB NOT NULL REFERENCES projects (id),
    caller     TEXT NOT NULL,
    key        TEXT NOT NULL,
    digest     BLOB NOT NULL,
    answer     TEXT NOT NULL,
    created_at TEXT NOT NULL,
    PRIMARY KEY (project_id, caller, key)
) STRICT;
CREATE INDEX request_keys_by_time ON request_keys (created_at);
