-- What became of the question to a person, so that past approvals can be listed as well as those that wait.
ALTER TABLE tool_calls ADD COLUMN approval_status TEXT;
UPDATE tool_calls SET approval_status = 'pending' WHERE status = 'pending_approval';
CREATE INDEX tool_calls_by_approval_status ON tool_calls (project_id, approval_status, id)
    WHERE approval_status IS NOT NULL;
