-- What models have used, summed by day (UTC). A step adds to its row in its own transaction, so nothing is counted
-- twice or lost. Rows outlive projects and agents. An agent of zeros stands for the project itself, which makes plans
-- and sums up their results. Costs are in nano-dollars (10^-9 USD), so that sums are exact.
CREATE TABLE usage_days (
    user_id       BLOB NOT NULL,
    day           TEXT NOT NULL,
    project_id    BLOB NOT NULL,
    agent_id      BLOB NOT NULL,
    model         TEXT NOT NULL,
    tenant_id     TEXT NOT NULL,
    agent_name    TEXT,
    steps         INTEGER NOT NULL,
    input_tokens  INTEGER NOT NULL,
    output_tokens INTEGER NOT NULL,
    cost_nanos    INTEGER NOT NULL,
    PRIMARY KEY (user_id, day, project_id, agent_id, model)
) STRICT;
CREATE INDEX usage_days_of_project ON usage_days (project_id, day);
CREATE INDEX usage_days_of_tenant ON usage_days (tenant_id, day);
CREATE INDEX usage_days_by_day ON usage_days (day);

-- What a tenant, or the whole server (`server:`), has used in a day. Each is spread over several rows, because
-- transactions that add to one row wait for each other.
CREATE TABLE usage_totals (
    scope         TEXT NOT NULL,
    day           TEXT NOT NULL,
    shard         INTEGER NOT NULL,
    tokens        INTEGER NOT NULL,
    cost_nanos    INTEGER NOT NULL,
    PRIMARY KEY (scope, day, shard)
) STRICT;
CREATE INDEX usage_totals_by_day ON usage_totals (day);

-- Budgets that people have set. `scope` is `server:`, the name of a tenant, or `user:` and an id; `level` is who has set
-- it: `own`, `tenant` or `server`. The smallest number of all levels counts.
CREATE TABLE budgets (
    scope         TEXT NOT NULL,
    level         TEXT NOT NULL,
    tenant_id     TEXT,
    record        TEXT NOT NULL,
    updated_by    BLOB NOT NULL REFERENCES users (id),
    updated_at    TEXT NOT NULL,
    PRIMARY KEY (scope, level)
) STRICT;
CREATE INDEX budgets_of_tenant ON budgets (tenant_id) WHERE tenant_id IS NOT NULL;

-- Warnings that were sent, so that each is sent once: for a number of a budget in a day or a month.
CREATE TABLE budget_warnings (
    scope         TEXT NOT NULL,
    period        TEXT NOT NULL,
    unit          TEXT NOT NULL,
    budget        TEXT NOT NULL,
    PRIMARY KEY (scope, period, unit, budget)
) STRICT;
