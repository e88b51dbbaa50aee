-- What agents remember: the facts. Vectors, words and the index are made from them and can be made again.
-- Times are microseconds since 1970, so that both databases count days alike.
CREATE TABLE interactions (
    seq           INTEGER PRIMARY KEY AUTOINCREMENT,
    agent_id      BLOB NOT NULL,
    id            BLOB NOT NULL,
    type          TEXT NOT NULL,
    text          TEXT NOT NULL,
    success       INTEGER NOT NULL,
    error_details TEXT,
    at            INTEGER NOT NULL,
    task_id       TEXT,
    session_id    TEXT,
    metadata      TEXT NOT NULL
) STRICT;
CREATE UNIQUE INDEX interactions_by_id ON interactions (agent_id, id);
CREATE INDEX interactions_by_time ON interactions (agent_id, at, id, type, success);

-- Beside the facts, not in them: whoever counts or pages through facts should not read six kilobytes each.
CREATE TABLE interaction_vectors (
    seq      INTEGER PRIMARY KEY,
    embedder TEXT NOT NULL,
    vector   BLOB NOT NULL
) STRICT;

-- For searches while the index is away. Holds the terms that Atelier itself makes of a text.
CREATE VIRTUAL TABLE interaction_terms USING fts5 (
    agent, terms, content = '', contentless_delete = 1, tokenize = "unicode61 remove_diacritics 0 tokenchars '_'"
);

-- An agent's collection in the index: which index has it, how its vectors were made, who feeds it.
CREATE TABLE memory_collections (
    agent_id    BLOB PRIMARY KEY NOT NULL,
    project_id  BLOB NOT NULL,
    user_id     BLOB NOT NULL,
    name        TEXT NOT NULL UNIQUE,
    state       TEXT NOT NULL,
    index_id    TEXT,
    embedder    TEXT,
    dimension   INTEGER,
    total       INTEGER NOT NULL DEFAULT 0,
    warned      INTEGER NOT NULL DEFAULT 0,
    restless    INTEGER NOT NULL DEFAULT 0,
    frequencies BLOB,
    holder      BLOB,
    lease_until TEXT
) STRICT;
CREATE INDEX memory_collections_by_project ON memory_collections (project_id);
-- Those that whoever feeds the index has something to do about.
CREATE INDEX memory_collections_restless ON memory_collections (agent_id) WHERE restless;

-- Facts that the index has not heard of: whoever feeds it looks at the fact and adds or removes it.
CREATE TABLE memory_outbox (
    seq      INTEGER PRIMARY KEY AUTOINCREMENT,
    agent_id BLOB NOT NULL,
    id       BLOB NOT NULL
) STRICT;
CREATE INDEX memory_outbox_by_agent ON memory_outbox (agent_id, seq);
