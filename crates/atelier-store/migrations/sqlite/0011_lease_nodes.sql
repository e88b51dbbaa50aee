-- Which server works in a conversation's folder: one that is gone does so no more.
ALTER TABLE workspace_leases ADD COLUMN node BLOB;
-- From when on a server that was silent itself may say that others are gone.
ALTER TABLE nodes ADD COLUMN judges_from TEXT;
