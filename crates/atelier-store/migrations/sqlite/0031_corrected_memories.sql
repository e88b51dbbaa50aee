-- What an owner wants an agent to always know. It is not deleted when the memory is full or pruned.
ALTER TABLE interactions ADD COLUMN pinned INTEGER NOT NULL DEFAULT 0;
CREATE INDEX interactions_pinned ON interactions (agent_id, at) WHERE pinned;
-- The texts that an interaction had before its owner corrected it.
CREATE TABLE interaction_history (
    seq         INTEGER NOT NULL,
    version     INTEGER NOT NULL,
    text        TEXT NOT NULL,
    replaced_at INTEGER NOT NULL,
    PRIMARY KEY (seq, version)
) STRICT;
