-- A machine's registration belongs to the token that made it, and to the tokens renewed from that one. Machines that an
-- earlier version registered belong to nobody until they register again.
ALTER TABLE clients ADD COLUMN token UUID;
-- A machine whose lease ran out. It stays known, so that nobody else takes its place unnoticed.
ALTER TABLE clients ADD COLUMN silent BOOLEAN NOT NULL DEFAULT FALSE;
