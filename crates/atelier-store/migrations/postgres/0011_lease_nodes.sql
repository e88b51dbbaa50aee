-- Which server works in a conversation's folder: one that is gone does so no more.
ALTER TABLE workspace_leases ADD COLUMN node UUID;
