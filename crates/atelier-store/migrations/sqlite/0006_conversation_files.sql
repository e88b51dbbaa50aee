-- The newest version of each file. A deleted file keeps its row; its path is free again.
CREATE TABLE conversation_files (
    id              BLOB PRIMARY KEY NOT NULL,
    conversation_id BLOB NOT NULL,
    file_path       TEXT NOT NULL,
    original_name   TEXT NOT NULL,
    description     TEXT,
    file_size       INTEGER NOT NULL,
    mime_type       TEXT NOT NULL,
    version         INTEGER NOT NULL,
    source          TEXT NOT NULL,
    is_presented    INTEGER NOT NULL,
    checksum        TEXT NOT NULL,
    status          TEXT NOT NULL,
    created_by      BLOB,
    created_at      TEXT NOT NULL,
    updated_at      TEXT NOT NULL
) STRICT;
CREATE UNIQUE INDEX conversation_files_path ON conversation_files (conversation_id, file_path) WHERE status = 'active';

-- Every version, the newest too.
CREATE TABLE file_versions (
    file_id         BLOB NOT NULL,
    version         INTEGER NOT NULL,
    conversation_id BLOB NOT NULL,
    original_name   TEXT NOT NULL,
    file_size       INTEGER NOT NULL,
    mime_type       TEXT NOT NULL,
    source          TEXT NOT NULL,
    checksum        TEXT NOT NULL,
    created_by      BLOB,
    created_at      TEXT NOT NULL,
    PRIMARY KEY (file_id, version)
) STRICT;
CREATE INDEX file_versions_content ON file_versions (conversation_id, checksum);

-- Where content lies. Equal content of a conversation is kept once; a key is never used again.
CREATE TABLE file_blobs (
    conversation_id BLOB NOT NULL,
    checksum        TEXT NOT NULL,
    object_key      TEXT NOT NULL,
    file_size       INTEGER NOT NULL,
    PRIMARY KEY (conversation_id, checksum)
) STRICT;

-- Objects that nothing points to any more, until they are gone.
CREATE TABLE object_removals (
    object_key      TEXT PRIMARY KEY NOT NULL,
    created_at      TEXT NOT NULL
) STRICT;

-- Paths whose readable copy in the object store is not yet what the tables say.
CREATE TABLE stale_copies (
    conversation_id BLOB NOT NULL,
    file_path       TEXT NOT NULL,
    mark            BLOB NOT NULL,
    PRIMARY KEY (conversation_id, file_path)
) STRICT;

-- Who works in a conversation's local folder. The fence tells a holder from those before.
CREATE TABLE workspace_leases (
    conversation_id BLOB PRIMARY KEY NOT NULL,
    fence           INTEGER NOT NULL,
    lease_until     TEXT NOT NULL
) STRICT;

-- Uploads that come in parts, and the parts that are there.
CREATE TABLE file_uploads (
    id              BLOB PRIMARY KEY NOT NULL,
    conversation_id BLOB NOT NULL,
    record          TEXT NOT NULL,
    expires_at      TEXT NOT NULL
) STRICT;
CREATE TABLE upload_parts (
    upload_id       BLOB NOT NULL,
    number          INTEGER NOT NULL,
    object_key      TEXT NOT NULL,
    part_size       INTEGER NOT NULL,
    checksum        TEXT NOT NULL,
    PRIMARY KEY (upload_id, number)
) STRICT;
