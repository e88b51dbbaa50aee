-- The seed's name of the column.
ALTER TABLE conversation_files RENAME COLUMN id TO file_id;
-- Whether a deleted file can be restored: an agent deleted it, and its content is kept.
ALTER TABLE conversation_files ADD COLUMN restorable BOOLEAN NOT NULL DEFAULT FALSE;
-- Grows with every change of a conversation's files. A local folder of the same generation is current.
ALTER TABLE conversations ADD COLUMN files_generation BIGINT NOT NULL DEFAULT 0;

-- Where a call acts: on a machine (client) or on the own files of its conversation.
ALTER TABLE tool_calls ADD COLUMN workspace TEXT NOT NULL DEFAULT 'client';
CREATE INDEX tool_calls_on_own_files ON tool_calls (deadline)
    WHERE workspace = 'conversation' AND deadline IS NOT NULL;

-- Steps of agents with calls on their conversation's own files that may have shown secrets.
CREATE TABLE withheld_steps (
    task_id    UUID NOT NULL,
    step       BIGINT NOT NULL,
    session_id UUID NOT NULL,
    PRIMARY KEY (task_id, step)
);
CREATE INDEX withheld_steps_by_session ON withheld_steps (session_id);
