-- The session of the agent token that asked for a call, so that the open calls of each can be counted.
ALTER TABLE tool_calls ADD COLUMN requested_by BLOB;
