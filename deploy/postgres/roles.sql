-- Two roles for a fleet's store, in a database of its own. Run it as a superuser in that database, as often as you like:
--
--   createdb fleet
--   psql -d fleet -f roles.sql
--   psql -d fleet -c '\password sloserve_owner' -c '\password sloserve_member'
--   SLOSERVE_FLEET_STORE=postgresql://sloserve_owner@HOST/fleet sloserve fleet upgrade FILE
--   SLOSERVE_FLEET_STORE=postgresql://sloserve_member@HOST/fleet sloserve fleet FILE
--
-- sloserve_owner owns the tables. Only `sloserve fleet upgrade` needs it: before the first start, and after an upgrade
-- of sloserve. sloserve_member reads and writes rows; gateways, planners and agents run as it. It cannot make, change,
-- empty or drop a table, and nobody else gets into the database.

DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'sloserve_owner') THEN
        CREATE ROLE sloserve_owner LOGIN;
    END IF;
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'sloserve_member') THEN
        CREATE ROLE sloserve_member LOGIN;
    END IF;
    EXECUTE format('REVOKE ALL ON DATABASE %I FROM PUBLIC', current_database());
    EXECUTE format('GRANT CONNECT ON DATABASE %I TO sloserve_owner, sloserve_member', current_database());
END $$;

REVOKE ALL ON SCHEMA public FROM PUBLIC;
GRANT USAGE, CREATE ON SCHEMA public TO sloserve_owner;
GRANT USAGE ON SCHEMA public TO sloserve_member;

-- Tables to come, and those of a store that was made before there were roles.
ALTER DEFAULT PRIVILEGES FOR ROLE sloserve_owner IN SCHEMA public
    GRANT SELECT, INSERT, UPDATE, DELETE ON TABLES TO sloserve_member;
GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO sloserve_member;
DO $$
DECLARE
    one record;
BEGIN
    FOR one IN SELECT tablename FROM pg_tables WHERE schemaname = 'public' LOOP
        EXECUTE format('ALTER TABLE public.%I OWNER TO sloserve_owner', one.tablename);
    END LOOP;
    IF to_regprocedure('public.store_now()') IS NOT NULL THEN
        ALTER FUNCTION public.store_now() OWNER TO sloserve_owner;
    END IF;
END $$;
