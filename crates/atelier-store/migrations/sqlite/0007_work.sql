CREATE TABLE messages (
    id          BLOB PRIMARY KEY NOT NULL,
    project_id  BLOB NOT NULL,
    session_id  BLOB NOT NULL,
    -- The task or plan that a message is the answer to.
    answers     BLOB,
    record      TEXT NOT NULL
) STRICT;
CREATE INDEX messages_by_session ON messages (session_id, id);
CREATE INDEX messages_answers ON messages (answers) WHERE answers IS NOT NULL;

CREATE TABLE plans (
    id          BLOB PRIMARY KEY NOT NULL,
    project_id  BLOB NOT NULL,
    session_id  BLOB NOT NULL,
    status      TEXT NOT NULL,
    record      TEXT NOT NULL
) STRICT;
CREATE INDEX plans_by_project ON plans (project_id, id);

-- A queue is an agent's id or, for planning and answers, the project's. `node` is the server that runs the task,
-- `fence` counts how often it was taken: whoever lost a task cannot write about it any more.
CREATE TABLE tasks (
    id            BLOB PRIMARY KEY NOT NULL,
    project_id    BLOB NOT NULL,
    user_id       BLOB NOT NULL,
    session_id    BLOB NOT NULL,
    plan_id       BLOB,
    queue         BLOB NOT NULL,
    status        TEXT NOT NULL,
    priority      INTEGER NOT NULL,
    node          BLOB,
    fence         INTEGER NOT NULL DEFAULT 0,
    pending_calls INTEGER NOT NULL DEFAULT 0,
    queued_at     TEXT,
    started_at    TEXT,
    record        TEXT NOT NULL
) STRICT;
CREATE INDEX tasks_by_project ON tasks (project_id, id);
CREATE INDEX tasks_by_session ON tasks (session_id);
CREATE INDEX tasks_by_plan ON tasks (plan_id) WHERE plan_id IS NOT NULL;
CREATE INDEX tasks_queued ON tasks (queue, priority DESC, id) WHERE status = 'queued';
CREATE INDEX tasks_running ON tasks (queue) WHERE status = 'running';
CREATE INDEX tasks_of_node ON tasks (node) WHERE node IS NOT NULL;

-- The journal of a task: what the model answered, before anything of it is done, and what came of it.
CREATE TABLE task_steps (
    task_id     BLOB NOT NULL,
    step        INTEGER NOT NULL,
    record      TEXT NOT NULL,
    PRIMARY KEY (task_id, step)
) STRICT;

-- Servers that share the database. One whose lease has run out is gone, and its tasks with it.
CREATE TABLE nodes (
    id          BLOB PRIMARY KEY NOT NULL,
    lease_until TEXT NOT NULL
) STRICT;
