-- A check value for each key that all nodes share. It does not reveal the key.
CREATE TABLE cluster_keys (
    name        TEXT PRIMARY KEY,
    check_value BLOB NOT NULL,
    set_at      TEXT NOT NULL
) STRICT;
