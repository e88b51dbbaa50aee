-- What people have entered about model providers, on top of the configuration. `scope` is `server:`, the name of a
-- tenant, or `user:` and an id. Only the server's rows have a kind, an address or models. Keys are sealed: the database
-- alone does not tell them. `key_address` is the address that the key was entered for.
CREATE TABLE model_providers (
    scope       TEXT NOT NULL,
    provider    TEXT NOT NULL,
    kind        TEXT,
    base_url    TEXT,
    models      TEXT NOT NULL,
    sealed      BYTEA,
    last_four   TEXT NOT NULL,
    key_address TEXT,
    updated_by  UUID NOT NULL REFERENCES users (id),
    updated_at  TIMESTAMPTZ NOT NULL,
    PRIMARY KEY (scope, provider)
);

INSERT INTO model_providers (scope, provider, models, sealed, last_four, updated_by, updated_at)
SELECT tenant_id, provider, '{}', sealed, last_four, updated_by, updated_at FROM provider_keys;
DROP TABLE provider_keys;

-- The default model that somebody has chosen for a scope.
CREATE TABLE default_models (
    scope      TEXT NOT NULL PRIMARY KEY,
    model      TEXT NOT NULL,
    updated_by UUID NOT NULL REFERENCES users (id),
    updated_at TIMESTAMPTZ NOT NULL
);
