-- Which server makes a readable copy. Others leave the copy alone until that server is gone.
ALTER TABLE stale_copies ADD COLUMN node UUID;
