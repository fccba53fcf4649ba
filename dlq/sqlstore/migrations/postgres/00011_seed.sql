-- +goose Up

-- The statements of services and people that kept their own table dlq_events work on the view: UPDATE resolves, discards, restores and
-- corrects, DELETE purges. The store itself never comes here: it writes the tables. The functions run with the rights of their owner, so
-- that GRANT UPDATE, DELETE ON dlq_events is enough. A statement and a concurrent change are isolated as on a table: a row that another
-- transaction has changed meanwhile is left out, and is not in the count of rows.

-- What an entry adds to the statistics and takes from them. Their rows stay unlocked until the transaction ends, as with other transactions
-- of applications.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION dlq_count_later(
    v_id BIGINT, v_fingerprint TEXT, v_type TEXT, v_topic TEXT, v_created TIMESTAMPTZ, v_died TIMESTAMPTZ,
    was TEXT, was_resolved TIMESTAMPTZ, becomes TEXT, resolved TIMESTAMPTZ -- becomes is NULL for an entry that goes
) RETURNS VOID LANGUAGE plpgsql AS $$
DECLARE
    utc    CONSTANT TEXT := 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"';
    counts JSONB := '{}';
    hours  JSONB := '[]';
    took   BIGINT := 0;
BEGIN
    IF was IS DISTINCT FROM becomes THEN
        counts := jsonb_build_object(initcap(was), -1);
        IF becomes IS NOT NULL THEN
            counts := counts || jsonb_build_object(initcap(becomes), 1);
        END IF;
    END IF;
    IF was = 'RESOLVED' THEN
        took := took - (extract(epoch FROM was_resolved - v_created) * 1000000)::BIGINT / 1000;
    END IF;
    IF becomes = 'RESOLVED' THEN
        took := took + (extract(epoch FROM resolved - v_created) * 1000000)::BIGINT / 1000;
    END IF;
    IF becomes IS NULL THEN
        hours := hours || jsonb_build_object('entries', -1, 'fingerprint', v_fingerprint,
            'hour', to_char(date_trunc('hour', v_created AT TIME ZONE 'UTC'), utc));
    END IF;
    IF was_resolved IS NOT NULL THEN
        hours := hours || jsonb_build_object('closed', -1, 'fingerprint', v_fingerprint,
            'hour', to_char(date_trunc('hour', was_resolved AT TIME ZONE 'UTC'), utc));
    END IF;
    IF resolved IS NOT NULL THEN
        hours := hours || jsonb_build_object('closed', 1, 'fingerprint', v_fingerprint,
            'hour', to_char(date_trunc('hour', resolved AT TIME ZONE 'UTC'), utc));
    END IF;
    INSERT INTO dlq_uncounted (deltas) SELECT jsonb_build_object(
        'groups', jsonb_build_array(jsonb_build_object('fingerprint', v_fingerprint, 'cause', coalesce(max(g.cause), ''),
            'sample', coalesce(max(g.sample), ''), 'error_class', coalesce(max(g.error_class), ''), 'handler', coalesce(max(g.handler), ''),
            'last_entry', v_id, 'first', to_char(v_created AT TIME ZONE 'UTC', utc), 'last', to_char(v_died AT TIME ZONE 'UTC', utc),
            'counts', counts)),
        'counts', jsonb_build_array(jsonb_build_object('event_type', v_type, 'topic', v_topic, 'counts', counts, 'resolution_ms', took)),
        'hours', hours)
    FROM dlq_groups g WHERE g.fingerprint = v_fingerprint;
END
$$;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE OR REPLACE FUNCTION dlq_events_update() RETURNS TRIGGER LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
    e        RECORD; -- the entry, which is locked
    unlike   RECORD;
    revised  BOOLEAN := NEW.event_payload IS DISTINCT FROM OLD.event_payload;
    closes   BOOLEAN := NEW.status IN ('RESOLVED', 'DISCARDED');
    actor    TEXT := session_user;
    note     TEXT := 'UPDATE of dlq_events by the database user ' || session_user;
    last     INTEGER;
    names    TEXT;
BEGIN
    IF NEW IS NOT DISTINCT FROM OLD THEN
        RETURN NEW;
    END IF;
    unlike := OLD;
    unlike.status := NEW.status; unlike.resolved_at := NEW.resolved_at; unlike.resolved_by := NEW.resolved_by;
    unlike.retry_count := NEW.retry_count; unlike.max_retries := NEW.max_retries; unlike.last_retry_at := NEW.last_retry_at;
    unlike.event_payload := NEW.event_payload;
    IF unlike IS DISTINCT FROM NEW THEN
        SELECT string_agg(n.key, ', ') INTO names FROM jsonb_each(to_jsonb(NEW)) n JOIN jsonb_each(to_jsonb(unlike)) o ON o.key = n.key
            WHERE n.value IS DISTINCT FROM o.value;
        RAISE EXCEPTION 'dlq_events: % of entry % cannot be changed', names, OLD.id USING ERRCODE = 'feature_not_supported',
            HINT = 'What may be changed is status, resolved_at, resolved_by, event_payload, retry_count, max_retries and last_retry_at.';
    END IF;
    SELECT * INTO e FROM dlq_entries WHERE id = OLD.id FOR UPDATE;
    IF NOT FOUND OR e.status <> OLD.status OR e.revision <> OLD.revision OR e.retry_count <> OLD.retry_count
        OR e.resolved_at IS DISTINCT FROM OLD.resolved_at THEN
        RETURN NULL;
    END IF;
    IF e.status = 'RETRYING' AND e.lease_until > clock_timestamp() THEN
        RAISE EXCEPTION 'dlq_events: entry % is redriven, and its outcome awaited until %', e.id, e.lease_until
            USING ERRCODE = 'object_in_use', HINT = 'Leave RETRYING out, or end the wait by redrive dlq release.';
    ELSIF NEW.status = 'RETRYING' THEN
        RAISE EXCEPTION 'dlq_events: only a redrive makes an entry RETRYING' USING ERRCODE = 'check_violation';
    ELSIF NOT closes AND NEW.status = e.status AND (NEW.resolved_at IS NOT NULL OR NEW.resolved_by IS NOT NULL) THEN
        RAISE EXCEPTION 'dlq_events: entry % is %, which has no resolved_at and no resolved_by', e.id, e.status
            USING ERRCODE = 'check_violation', HINT = 'Set the status with them.';
    ELSIF revised AND (NEW.event_payload IS NULL OR e.status NOT IN ('PENDING', 'PARKED')) THEN
        RAISE EXCEPTION 'dlq_events: the payload of entry %, which is %, cannot be changed so', e.id, e.status
            USING ERRCODE = 'check_violation', HINT = 'PENDING and PARKED entries are corrected, by a payload that is not NULL.';
    END IF;
    IF closes THEN
        NEW.resolved_at := coalesce(NEW.resolved_at, CURRENT_TIMESTAMP);
        NEW.resolved_by := coalesce(NEW.resolved_by, session_user);
        actor := NEW.resolved_by;
    ELSE
        NEW.resolved_at := NULL;
        NEW.resolved_by := NULL;
    END IF;
    NEW.version := e.version;
    NEW.changed_at := CURRENT_TIMESTAMP;
    NEW.changed_by := actor;
    IF revised THEN
        SELECT max(revision) + 1 INTO last FROM dlq_bodies WHERE entry_id = e.id;
        NEW.payload := convert_to(NEW.event_payload::TEXT, 'UTF8');
        INSERT INTO dlq_bodies (entry_id, revision, message_uuid, payload, payload_json, payload_sha256, content_type, headers, stack_trace)
            SELECT entry_id, last, message_uuid, NEW.payload, NEW.event_payload, sha256(NEW.payload), content_type, headers, stack_trace
            FROM dlq_bodies WHERE entry_id = e.id AND revision = e.revision;
        NEW.revision := last;
        NEW.payload_size := octet_length(NEW.payload);
    END IF;
    IF revised OR NEW.status = e.status THEN
        NEW.version := NEW.version + 1;
        INSERT INTO dlq_audit (at, entry_id, actor, action, note, from_status, to_status, version, detail)
            VALUES (clock_timestamp(), e.id, left(actor, 1024), 'edit', note, e.status, e.status, NEW.version, jsonb_strip_nulls(jsonb_build_object(
                'revision', CASE WHEN revised THEN last::TEXT END,
                'retry_count', CASE WHEN NEW.retry_count <> e.retry_count THEN NEW.retry_count::TEXT END,
                'max_retries', CASE WHEN NEW.max_retries <> e.max_retries THEN NEW.max_retries::TEXT END)));
    END IF;
    IF NEW.status <> e.status THEN
        NEW.version := NEW.version + 1;
        INSERT INTO dlq_audit (at, entry_id, run_id, actor, action, note, from_status, to_status, version)
            VALUES (clock_timestamp(), e.id, CASE WHEN e.status = 'RETRYING' THEN e.run_id END, left(actor, 1024),
                CASE WHEN NEW.status = 'RESOLVED' THEN 'resolve' WHEN NEW.status = 'DISCARDED' THEN 'discard' WHEN NEW.status = 'PARKED' THEN 'park'
                    WHEN e.status = 'RETRYING' THEN 'release by hand' ELSE 'restore' END,
                note, e.status, NEW.status, NEW.version);
    END IF;
    UPDATE dlq_entries SET status = NEW.status, version = NEW.version, retry_count = NEW.retry_count, max_retries = NEW.max_retries,
        last_retry_at = NEW.last_retry_at, resolved_at = NEW.resolved_at, resolved_by = NEW.resolved_by, changed_at = NEW.changed_at,
        changed_by = NEW.changed_by, revision = NEW.revision, payload_size = NEW.payload_size,
        lease_until = CASE WHEN NEW.status = e.status THEN lease_until END
    WHERE id = e.id;
    IF NEW.status <> e.status OR NEW.resolved_at IS DISTINCT FROM e.resolved_at THEN
        PERFORM dlq_count_later(e.id, e.fingerprint, e.event_type, e.topic, e.created_at, e.died_at,
            e.status, e.resolved_at, NEW.status, NEW.resolved_at);
    END IF;
    RETURN NEW;
END
$$;
-- +goose StatementEnd

-- What is deleted goes to the archive, whether or not a statement before has copied it there.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION dlq_events_delete() RETURNS TRIGGER LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
    e     RECORD;
    names TEXT;
BEGIN
    SELECT * INTO e FROM dlq_entries WHERE id = OLD.id FOR UPDATE;
    IF NOT FOUND OR e.status <> OLD.status OR e.revision <> OLD.revision OR e.resolved_at IS DISTINCT FROM OLD.resolved_at THEN
        RETURN NULL;
    END IF;
    IF e.status = 'RETRYING' THEN
        RAISE EXCEPTION 'dlq_events: entry % is redriven, and its outcome awaited', e.id
            USING ERRCODE = 'object_in_use', HINT = 'Leave RETRYING out, or end the wait by redrive dlq release.';
    END IF;
    SELECT string_agg(quote_ident(attname), ', ' ORDER BY attnum) INTO names FROM pg_attribute
        WHERE attrelid = TG_RELID AND attnum > 0 AND NOT attisdropped;
    DELETE FROM archive.dlq_events_archive WHERE id = e.id;
    EXECUTE 'INSERT INTO archive.dlq_events_archive (' || names || ', archived_at) SELECT ' || names
        || ', CURRENT_TIMESTAMP FROM dlq_events WHERE id = $1' USING e.id;
    INSERT INTO archive.dlq_bodies_archive (entry_id, revision, message_uuid, payload, payload_json, payload_sha256, content_type, headers, stack_trace)
        SELECT entry_id, revision, message_uuid, payload, payload_json, payload_sha256, content_type, headers, stack_trace
        FROM dlq_bodies WHERE entry_id = e.id AND revision <> e.revision;
    DELETE FROM dlq_bodies WHERE entry_id = e.id;
    DELETE FROM dlq_entries WHERE id = e.id;
    DELETE FROM dlq_keys WHERE entry_id = e.id;
    INSERT INTO dlq_audit (at, entry_id, run_id, actor, action, note, from_status, to_status, version, detail)
        VALUES (clock_timestamp(), e.id, e.run_id, session_user, 'purge', 'DELETE from dlq_events by the database user ' || session_user,
            e.status, '', e.version, jsonb_build_object('event_id', e.event_id));
    PERFORM dlq_count_later(e.id, e.fingerprint, e.event_type, e.topic, e.created_at, e.died_at, e.status, e.resolved_at, NULL, NULL);
    RETURN OLD;
END
$$;
-- +goose StatementEnd

DROP TRIGGER IF EXISTS dlq_events_update ON dlq_events;
CREATE TRIGGER dlq_events_update INSTEAD OF UPDATE ON dlq_events FOR EACH ROW EXECUTE FUNCTION dlq_events_update();
DROP TRIGGER IF EXISTS dlq_events_delete ON dlq_events;
CREATE TRIGGER dlq_events_delete INSTEAD OF DELETE ON dlq_events FOR EACH ROW EXECUTE FUNCTION dlq_events_delete();

-- The functions mean this store's tables, whatever the caller's search_path is, and no temporary table of the caller's.
-- +goose StatementBegin
DO $$
BEGIN
    EXECUTE format('ALTER FUNCTION dlq_events_update() SET search_path = %I, pg_temp', current_schema());
    EXECUTE format('ALTER FUNCTION dlq_events_delete() SET search_path = %I, pg_temp', current_schema());
END
$$;
-- +goose StatementEnd

-- INSERT INTO archive ... SELECT * FROM dlq_events: its columns are the view's, in their order, and the one more that the statement does not
-- have is the last.
ALTER TABLE archive.dlq_events_archive ALTER COLUMN archived_at SET DEFAULT CURRENT_TIMESTAMP;
-- +goose StatementBegin
DO $$
BEGIN
    IF EXISTS (SELECT 1 FROM pg_attribute later JOIN pg_attribute a ON a.attrelid = later.attrelid AND a.attnum < later.attnum
        WHERE later.attrelid = 'archive.dlq_events_archive'::regclass AND a.attname = 'archived_at' AND NOT later.attisdropped) THEN
        ALTER TABLE archive.dlq_events_archive RENAME COLUMN archived_at TO archived_before;
        ALTER TABLE archive.dlq_events_archive ADD COLUMN archived_at TIMESTAMPTZ;
        UPDATE archive.dlq_events_archive SET archived_at = archived_before;
        ALTER TABLE archive.dlq_events_archive ALTER COLUMN archived_at SET DEFAULT CURRENT_TIMESTAMP, ALTER COLUMN archived_at SET NOT NULL,
            DROP COLUMN archived_before;
    END IF;
END
$$;
-- +goose StatementEnd

-- +goose Down
DROP TRIGGER dlq_events_delete ON dlq_events;
DROP TRIGGER dlq_events_update ON dlq_events;
DROP FUNCTION dlq_events_delete;
DROP FUNCTION dlq_events_update;
DROP FUNCTION dlq_count_later;
ALTER TABLE archive.dlq_events_archive ALTER COLUMN archived_at DROP DEFAULT;
