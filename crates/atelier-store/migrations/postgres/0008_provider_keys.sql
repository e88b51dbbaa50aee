-- Keys of model providers that a tenant brought along, sealed: the database alone does not tell them.
CREATE TABLE provider_keys (
    tenant_id  TEXT NOT NULL REFERENCES tenants (id),
    provider   TEXT NOT NULL,
    sealed     BYTEA NOT NULL,
    last_four  TEXT NOT NULL,
    updated_by UUID NOT NULL REFERENCES users (id),
    updated_at TIMESTAMPTZ NOT NULL,
    PRIMARY KEY (tenant_id, provider)
);
