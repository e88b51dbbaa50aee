-- event_seq is the number of the last event, event_floor the last one that retention has removed.
ALTER TABLE users ADD COLUMN event_seq INTEGER NOT NULL DEFAULT 0;
ALTER TABLE users ADD COLUMN event_floor INTEGER NOT NULL DEFAULT 0;
ALTER TABLE projects ADD COLUMN event_seq INTEGER NOT NULL DEFAULT 0;
ALTER TABLE projects ADD COLUMN event_floor INTEGER NOT NULL DEFAULT 0;

-- Each event has two numbers without gaps: one in its project, one among all projects of its owner.
CREATE TABLE events (
    project_id  BLOB NOT NULL,
    seq         INTEGER NOT NULL,
    user_id     BLOB NOT NULL,
    user_seq    INTEGER NOT NULL,
    name        TEXT NOT NULL,
    data        TEXT NOT NULL,
    created_at  TEXT NOT NULL,
    PRIMARY KEY (project_id, seq)
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX events_by_user ON events (user_id, user_seq);
