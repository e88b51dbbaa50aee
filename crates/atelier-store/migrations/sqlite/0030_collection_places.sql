-- Where the index keeps the vectors of an agent. NULL is the place of older versions: a collection, or a folder, that
-- has the name or the id of its agent.
ALTER TABLE memory_collections ADD COLUMN place TEXT;
-- While an agent's memories are embedded again, the vectors of the former embedder stay where they are. Interactions
-- with lower numbers than reembed_below are still to be embedded; NULL if there is no former part.
ALTER TABLE memory_collections ADD COLUMN former_embedder TEXT;
ALTER TABLE memory_collections ADD COLUMN former_dimension INTEGER;
ALTER TABLE memory_collections ADD COLUMN former_place TEXT;
ALTER TABLE memory_collections ADD COLUMN reembed_below INTEGER;
CREATE INDEX interactions_by_number ON interactions (agent_id, seq);
