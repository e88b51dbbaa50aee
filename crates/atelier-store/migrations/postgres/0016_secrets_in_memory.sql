-- Calls whose results may hold secrets, and the conversations that have seen them. What agents say there is
-- remembered without the values of these results.
CREATE TABLE withheld_calls (
    call_id    UUID PRIMARY KEY REFERENCES tool_calls (id) ON DELETE CASCADE,
    session_id UUID NOT NULL
);
CREATE INDEX withheld_calls_by_session ON withheld_calls (session_id);

-- How far the clean-up of memories that older versions stored has come, for each version of its rules.
CREATE TABLE memory_cleanup (
    rules    BIGINT PRIMARY KEY,
    position TEXT NOT NULL
);
