-- What a one-time code is for, and the session that made it. Codes of the first start have neither.
ALTER TABLE sign_in_codes ADD COLUMN project_id UUID;
ALTER TABLE sign_in_codes ADD COLUMN session_id UUID;
ALTER TABLE sign_in_codes ADD COLUMN began_at TIMESTAMPTZ;
ALTER TABLE sign_in_codes ADD COLUMN ends_at TIMESTAMPTZ;
