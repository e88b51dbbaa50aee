-- How often a node was lost while it ran the task. A task that ends its node each time must not go on.
ALTER TABLE tasks ADD COLUMN interruptions INTEGER NOT NULL DEFAULT 0;
