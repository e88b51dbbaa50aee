-- What agents remember: the facts. Vectors, words and the index are made from them and can be made again.
-- Times are microseconds since 1970, so that both databases count days alike.
CREATE TABLE interactions (
    seq           BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    agent_id      UUID NOT NULL,
    id            UUID NOT NULL,
    type          TEXT NOT NULL,
    text          TEXT NOT NULL,
    success       BOOLEAN NOT NULL,
    error_details TEXT,
    at            BIGINT NOT NULL,
    task_id       TEXT,
    session_id    TEXT,
    metadata      TEXT NOT NULL
);
CREATE UNIQUE INDEX interactions_by_id ON interactions (agent_id, id);
CREATE INDEX interactions_by_time ON interactions (agent_id, at, id, type, success);

-- Beside the facts, not in them: whoever counts or pages through facts should not read six kilobytes each.
CREATE TABLE interaction_vectors (
    seq      BIGINT PRIMARY KEY,
    embedder TEXT NOT NULL,
    vector   BYTEA NOT NULL
);

-- For searches while the index is away. Holds the terms that Atelier itself makes of a text.
CREATE TABLE interaction_terms (
    seq   BIGINT PRIMARY KEY,
    terms TSVECTOR NOT NULL
);
CREATE INDEX interaction_terms_words ON interaction_terms USING GIN (terms);

-- An agent's collection in the index: which index has it, how its vectors were made, who feeds it.
CREATE TABLE memory_collections (
    agent_id    UUID PRIMARY KEY,
    project_id  UUID NOT NULL,
    user_id     UUID NOT NULL,
    name        TEXT NOT NULL UNIQUE,
    state       TEXT NOT NULL,
    index_id    TEXT,
    embedder    TEXT,
    dimension   BIGINT,
    total       BIGINT NOT NULL DEFAULT 0,
    warned      BOOLEAN NOT NULL DEFAULT FALSE,
    restless    BOOLEAN NOT NULL DEFAULT FALSE,
    frequencies BYTEA,
    holder      UUID,
    lease_until TIMESTAMPTZ
);
CREATE INDEX memory_collections_by_project ON memory_collections (project_id);
-- Those that whoever feeds the index has something to do about.
CREATE INDEX memory_collections_restless ON memory_collections (agent_id) WHERE restless;

-- Facts that the index has not heard of: whoever feeds it looks at the fact and adds or removes it.
CREATE TABLE memory_outbox (
    seq      BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    agent_id UUID NOT NULL,
    id       UUID NOT NULL
);
CREATE INDEX memory_outbox_by_agent ON memory_outbox (agent_id, seq);
