-- The oldest schema whose versions of Atelier may use this database. A migration that older versions
-- could not live with (it removes, renames or restricts something that they use) raises it:
--   UPDATE neighbour_versions SET oldest = <its own number>;
CREATE TABLE neighbour_versions (oldest BIGINT NOT NULL);
INSERT INTO neighbour_versions VALUES (34);
