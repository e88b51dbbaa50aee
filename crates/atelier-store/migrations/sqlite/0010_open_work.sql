-- What is not over yet, found without going through everything that is.
DROP INDEX tool_calls_due;
CREATE INDEX tool_calls_open ON tool_calls (project_id, deadline, id) WHERE deadline IS NOT NULL;
CREATE INDEX plans_pending ON plans (project_id) WHERE status = 'pending_approval';
