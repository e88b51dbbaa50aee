-- Calls whose results may hold secrets, and the conversations that have seen them. What agents say there is
-- remembered without the values of these results.
CREATE TABLE withheld_calls (
    call_id    BLOB PRIMARY KEY NOT NULL REFERENCES tool_calls (id) ON DELETE CASCADE,
    session_id BLOB NOT NULL
) STRICT;
CREATE INDEX withheld_calls_by_session ON withheld_calls (session_id);

-- How far the clean-up of memories that older versions stored has come, for each version of its rules.
CREATE TABLE memory_cleanup (
    rules    INTEGER PRIMARY KEY NOT NULL,
    position TEXT NOT NULL
) STRICT;
