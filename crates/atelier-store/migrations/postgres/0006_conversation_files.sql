-- The newest version of each file. A deleted file keeps its row; its path is free again.
CREATE TABLE conversation_files (
    id              UUID PRIMARY KEY,
    conversation_id UUID NOT NULL,
    file_path       TEXT NOT NULL,
    original_name   TEXT NOT NULL,
    description     TEXT,
    file_size       BIGINT NOT NULL,
    mime_type       TEXT NOT NULL,
    version         BIGINT NOT NULL,
    source          TEXT NOT NULL,
    is_presented    BOOLEAN NOT NULL,
    checksum        TEXT NOT NULL,
    status          TEXT NOT NULL,
    created_by      UUID,
    created_at      TIMESTAMPTZ NOT NULL,
    updated_at      TIMESTAMPTZ NOT NULL
);
CREATE UNIQUE INDEX conversation_files_path ON conversation_files (conversation_id, file_path) WHERE status = 'active';

-- Every version, the newest too.
CREATE TABLE file_versions (
    file_id         UUID NOT NULL,
    version         BIGINT NOT NULL,
    conversation_id UUID NOT NULL,
    original_name   TEXT NOT NULL,
    file_size       BIGINT NOT NULL,
    mime_type       TEXT NOT NULL,
    source          TEXT NOT NULL,
    checksum        TEXT NOT NULL,
    created_by      UUID,
    created_at      TIMESTAMPTZ NOT NULL,
    PRIMARY KEY (file_id, version)
);
CREATE INDEX file_versions_content ON file_versions (conversation_id, checksum);

-- Where content lies. Equal content of a conversation is kept once; a key is never used again.
CREATE TABLE file_blobs (
    conversation_id UUID NOT NULL,
    checksum        TEXT NOT NULL,
    object_key      TEXT NOT NULL,
    file_size       BIGINT NOT NULL,
    PRIMARY KEY (conversation_id, checksum)
);

-- Objects that nothing points to any more, until they are gone.
CREATE TABLE object_removals (
    object_key      TEXT PRIMARY KEY,
    created_at      TIMESTAMPTZ NOT NULL
);

-- Paths whose readable copy in the object store is not yet what the tables say.
CREATE TABLE stale_copies (
    conversation_id UUID NOT NULL,
    file_path       TEXT NOT NULL,
    mark            UUID NOT NULL,
    PRIMARY KEY (conversation_id, file_path)
);

-- Who works in a conversation's local folder. The fence tells a holder from those before.
CREATE TABLE workspace_leases (
    conversation_id UUID PRIMARY KEY,
    fence           BIGINT NOT NULL,
    lease_until     TIMESTAMPTZ NOT NULL
);

-- Uploads that come in parts, and the parts that are there.
CREATE TABLE file_uploads (
    id              UUID PRIMARY KEY,
    conversation_id UUID NOT NULL,
    record          TEXT NOT NULL,
    expires_at      TIMESTAMPTZ NOT NULL
);
CREATE TABLE upload_parts (
    upload_id       UUID NOT NULL,
    number          BIGINT NOT NULL,
    object_key      TEXT NOT NULL,
    part_size       BIGINT NOT NULL,
    checksum        TEXT NOT NULL,
    PRIMARY KEY (upload_id, number)
);
