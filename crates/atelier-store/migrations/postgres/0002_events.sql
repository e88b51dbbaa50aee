-- event_seq is the number of the last event, event_floor the last one that retention has removed.
ALTER TABLE users ADD COLUMN event_seq BIGINT NOT NULL DEFAULT 0;
ALTER TABLE users ADD COLUMN event_floor BIGINT NOT NULL DEFAULT 0;
ALTER TABLE projects ADD COLUMN event_seq BIGINT NOT NULL DEFAULT 0;
ALTER TABLE projects ADD COLUMN event_floor BIGINT NOT NULL DEFAULT 0;

-- Each event has two numbers without gaps: one in its project, one among all projects of its owner.
CREATE TABLE events (
    project_id  UUID NOT NULL,
    seq         BIGINT NOT NULL,
    user_id     UUID NOT NULL,
    user_seq    BIGINT NOT NULL,
    name        TEXT NOT NULL,
    data        TEXT NOT NULL,
    created_at  TIMESTAMPTZ NOT NULL,
    PRIMARY KEY (project_id, seq)
);
CREATE UNIQUE INDEX events_by_user ON events (user_id, user_seq);
