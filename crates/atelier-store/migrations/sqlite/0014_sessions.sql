-- One sign-in, with all tokens that were renewed from its first one. The id is the id of the first token.
CREATE TABLE sessions (
    id               BLOB PRIMARY KEY NOT NULL,
    user_id          BLOB NOT NULL REFERENCES users (id),
    role             TEXT NOT NULL,
    project_id       BLOB,
    conversation_id  BLOB,
    user_agent       TEXT,
    created_at       TEXT NOT NULL,
    last_used_at     TEXT NOT NULL,
    expires_at       TEXT NOT NULL
) STRICT;
CREATE INDEX sessions_of_user ON sessions (user_id);

-- Users who signed out everywhere: sessions that began before this time have ended.
CREATE TABLE sign_outs (
    user_id       BLOB PRIMARY KEY NOT NULL REFERENCES users (id),
    began_before  TEXT NOT NULL
) STRICT;
