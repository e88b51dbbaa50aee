CREATE TABLE messages (
    id          UUID PRIMARY KEY,
    project_id  UUID NOT NULL,
    session_id  UUID NOT NULL,
    -- The task or plan that a message is the answer to.
    answers     UUID,
    record      TEXT NOT NULL
);
CREATE INDEX messages_by_session ON messages (session_id, id);
CREATE INDEX messages_answers ON messages (answers) WHERE answers IS NOT NULL;

CREATE TABLE plans (
    id          UUID PRIMARY KEY,
    project_id  UUID NOT NULL,
    session_id  UUID NOT NULL,
    status      TEXT NOT NULL,
    record      TEXT NOT NULL
);
CREATE INDEX plans_by_project ON plans (project_id, id);

-- A queue is an agent's id or, for planning and answers, the project's. `node` is the server that runs the task,
-- `fence` counts how often it was taken: whoever lost a task cannot write about it any more.
CREATE TABLE tasks (
    id            UUID PRIMARY KEY,
    project_id    UUID NOT NULL,
    user_id       UUID NOT NULL,
    session_id    UUID NOT NULL,
    plan_id       UUID,
    queue         UUID NOT NULL,
    status        TEXT NOT NULL,
    priority      BIGINT NOT NULL,
    node          UUID,
    fence         BIGINT NOT NULL DEFAULT 0,
    pending_calls BIGINT NOT NULL DEFAULT 0,
    queued_at     TIMESTAMPTZ,
    started_at    TIMESTAMPTZ,
    record        TEXT NOT NULL
);
CREATE INDEX tasks_by_project ON tasks (project_id, id);
CREATE INDEX tasks_by_session ON tasks (session_id);
CREATE INDEX tasks_by_plan ON tasks (plan_id) WHERE plan_id IS NOT NULL;
CREATE INDEX tasks_queued ON tasks (queue, priority DESC, id) WHERE status = 'queued';
CREATE INDEX tasks_running ON tasks (queue) WHERE status = 'running';
CREATE INDEX tasks_of_node ON tasks (node) WHERE node IS NOT NULL;

-- The journal of a task: what the model answered, before anything of it is done, and what came of it.
CREATE TABLE task_steps (
    task_id     UUID NOT NULL,
    step        BIGINT NOT NULL,
    record      TEXT NOT NULL,
    PRIMARY KEY (task_id, step)
);

-- Servers that share the database. One whose lease has run out is gone, and its tasks with it.
CREATE TABLE nodes (
    id          UUID PRIMARY KEY,
    lease_until TIMESTAMPTZ NOT NULL
);
