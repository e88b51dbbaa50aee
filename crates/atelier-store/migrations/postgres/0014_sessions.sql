-- One sign-in, with all tokens that were renewed from its first one. The id is the id of the first token.
CREATE TABLE sessions (
    id               UUID PRIMARY KEY,
    user_id          UUID NOT NULL REFERENCES users (id),
    role             TEXT NOT NULL,
    project_id       UUID,
    conversation_id  UUID,
    user_agent       TEXT,
    created_at       TIMESTAMPTZ NOT NULL,
    last_used_at     TIMESTAMPTZ NOT NULL,
    expires_at       TIMESTAMPTZ NOT NULL
);
CREATE INDEX sessions_of_user ON sessions (user_id);

-- Users who signed out everywhere: sessions that began before this time have ended.
CREATE TABLE sign_outs (
    user_id       UUID PRIMARY KEY REFERENCES users (id),
    began_before  TIMESTAMPTZ NOT NULL
);
