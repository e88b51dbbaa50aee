-- A task that has begun runs before the waiting tasks of its queue. Earlier versions added a million to the
-- priority of such a task instead, and to a negative priority sometimes twice.
ALTER TABLE tasks ADD COLUMN begun BOOLEAN NOT NULL DEFAULT FALSE;
UPDATE tasks SET begun = TRUE, priority = priority - 1000000 * ((priority + 500000) / 1000000)
WHERE priority >= 500000;
DROP INDEX tasks_queued;
CREATE INDEX tasks_queued ON tasks (queue, begun DESC, priority DESC, id) WHERE status = 'queued';
