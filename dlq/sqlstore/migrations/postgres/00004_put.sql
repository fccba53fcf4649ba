-- +goose Up

-- How new dead letters are stored: in one round trip, by statements that the server has planned. A parameter is a column of the letters,
-- v_ and its name, or of the statistics. Writers name them, so that their order does not matter.

-- Many letters, in the order of their keys: an array has an element for each letter, or none at all for a column that is NULL in all
-- of them. Those whose key exists are left out. The result has the ids, NULL for each one left out.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION dlq_put_letters(
    v_dedup_key BYTEA[], v_event_id TEXT[], v_event_type TEXT[], v_source_table TEXT[], v_source_id TEXT[], v_correlation_id TEXT[],
    v_broker TEXT[], v_topic TEXT[], v_consumer TEXT[], v_handler TEXT[], v_exchange TEXT[], v_routing_key BYTEA[], v_message_key BYTEA[],
    v_kafka_partition INTEGER[], v_kafka_offset BIGINT[], v_position TEXT[], v_broker_time TIMESTAMPTZ[], v_reason TEXT[],
    v_error_message TEXT[], v_error_code TEXT[], v_error_class TEXT[], v_rule TEXT[], v_fingerprint TEXT[], v_attempts INTEGER[],
    v_max_retries INTEGER[], v_created_at TIMESTAMPTZ[], v_first_failure_at TIMESTAMPTZ[], v_changed_by TEXT[],
    v_message_uuid BYTEA[], v_payload BYTEA[], v_payload_json TEXT[], v_payload_sha256 BYTEA[], v_content_type TEXT[], v_headers TEXT[],
    v_stack_trace TEXT[],
    -- Of each letter, the number of its group, its count and its hour among those below, from 1.
    in_group INTEGER[], in_count INTEGER[], in_hour INTEGER[],
    -- The statistics if all letters are new, in the order in which all callers lock them. group_at is the letter that died last.
    group_fingerprint TEXT[], group_cause TEXT[], group_sample TEXT[], group_class TEXT[], group_handler TEXT[],
    group_first TIMESTAMPTZ[], group_last TIMESTAMPTZ[], group_at INTEGER[], group_new BIGINT[],
    count_type TEXT[], count_topic TEXT[], count_new BIGINT[],
    hour_at TIMESTAMPTZ[], hour_fingerprint TEXT[], hour_new BIGINT[]
) RETURNS BIGINT[] LANGUAGE plpgsql AS $$
DECLARE
    ids   BIGINT[];
    found BYTEA[];
BEGIN
    PERFORM set_config('synchronous_commit', 'on', true); -- a database may have it off
    WITH k AS (
        INSERT INTO dlq_keys (dedup_key, event_id, source_id, correlation_id)
        SELECT unnest(v_dedup_key), unnest(v_event_id), unnest(v_source_id), unnest(v_correlation_id)
        ON CONFLICT (dedup_key) DO NOTHING RETURNING entry_id, dedup_key)
    SELECT array_agg(entry_id), array_agg(dedup_key) INTO ids, found FROM k;
    IF found IS NULL THEN
        RETURN ids;
    END IF;
    IF found <> v_dedup_key THEN -- not all are new, and the statistics are those of fewer
        SELECT array_agg(f.id ORDER BY v.n) INTO ids
            FROM unnest(v_dedup_key) WITH ORDINALITY v (key, n) LEFT JOIN unnest(found, ids) f (key, id) ON f.key = v.key;
        SELECT array_agg(coalesce(c.new, 0) ORDER BY g.n), array_agg(CASE WHEN ids[g.at] IS NULL THEN c.last ELSE g.at END ORDER BY g.n)
            INTO group_new, group_at
            FROM unnest(group_at) WITH ORDINALITY g (at, n) LEFT JOIN (
                SELECT v.at, count(*) AS new, max(v.n) AS last FROM unnest(in_group, ids) WITH ORDINALITY v (at, id, n)
                WHERE v.id IS NOT NULL GROUP BY v.at) c ON c.at = g.n;
        SELECT array_agg(coalesce(c.new, 0) ORDER BY g.n) INTO count_new
            FROM generate_subscripts(count_new, 1) g (n) LEFT JOIN (
                SELECT v.at, count(*) AS new FROM unnest(in_count, ids) v (at, id) WHERE v.id IS NOT NULL GROUP BY v.at) c ON c.at = g.n;
        SELECT array_agg(coalesce(c.new, 0) ORDER BY g.n) INTO hour_new
            FROM generate_subscripts(hour_new, 1) g (n) LEFT JOIN (
                SELECT v.at, count(*) AS new FROM unnest(in_hour, ids) v (at, id) WHERE v.id IS NOT NULL GROUP BY v.at) c ON c.at = g.n;
    END IF;
    INSERT INTO dlq_entries (id, dedup_key, event_id, event_type, source_table, source_id, correlation_id, broker, topic, consumer, handler,
        exchange, routing_key, message_key, kafka_partition, kafka_offset, position, broker_time, reason, error_message, error_code,
        error_class, rule, fingerprint, attempts, max_retries, created_at, first_failure_at, died_at, last_seen_at, changed_at, changed_by,
        payload_size)
    SELECT v.id, v.dedup_key, v.event_id, v.event_type, v.source_table, v.source_id, v.correlation_id, v.broker, v.topic, v.consumer,
        v.handler, v.exchange, v.routing_key, v.message_key, v.kafka_partition, v.kafka_offset, v.position, v.broker_time, v.reason,
        v.error_message, v.error_code, v.error_class, v.rule, v.fingerprint, v.attempts, v.max_retries, v.created_at,
        v.first_failure_at, v.created_at, v.created_at, v.created_at, v.changed_by, octet_length(v.payload)
    FROM (SELECT unnest(ids) AS id, unnest(v_dedup_key) AS dedup_key, unnest(v_event_id) AS event_id, unnest(v_event_type) AS event_type,
        unnest(v_source_table) AS source_table, unnest(v_source_id) AS source_id, unnest(v_correlation_id) AS correlation_id,
        unnest(v_broker) AS broker, unnest(v_topic) AS topic, unnest(v_consumer) AS consumer, unnest(v_handler) AS handler,
        unnest(v_exchange) AS exchange, unnest(v_routing_key) AS routing_key, unnest(v_message_key) AS message_key,
        unnest(v_kafka_partition) AS kafka_partition, unnest(v_kafka_offset) AS kafka_offset, unnest(v_position) AS position,
        unnest(v_broker_time) AS broker_time, unnest(v_reason) AS reason, unnest(v_error_message) AS error_message,
        unnest(v_error_code) AS error_code, unnest(v_error_class) AS error_class, unnest(v_rule) AS rule,
        unnest(v_fingerprint) AS fingerprint, unnest(v_attempts) AS attempts, unnest(v_max_retries) AS max_retries,
        unnest(v_created_at) AS created_at, unnest(v_first_failure_at) AS first_failure_at, unnest(v_changed_by) AS changed_by,
        unnest(v_payload) AS payload) v
    WHERE v.id IS NOT NULL;
    INSERT INTO dlq_bodies (entry_id, revision, message_uuid, payload, payload_json, payload_sha256, content_type, headers, stack_trace)
    SELECT v.id, 0, v.message_uuid, v.payload, v.payload_json::jsonb, v.payload_sha256, v.content_type, v.headers, v.stack_trace
    FROM (SELECT unnest(ids) AS id, unnest(v_message_uuid) AS message_uuid, unnest(v_payload) AS payload,
        unnest(v_payload_json) AS payload_json, unnest(v_payload_sha256) AS payload_sha256, unnest(v_content_type) AS content_type,
        unnest(v_headers) AS headers, unnest(v_stack_trace) AS stack_trace) v
    WHERE v.id IS NOT NULL;
    INSERT INTO dlq_groups (fingerprint, cause, sample, error_class, handler, pending, first_seen, last_seen, last_entry_id)
    SELECT v.fingerprint, v.cause, v.sample, v.class, v.handler, v.new, v.first, v.last, ids[v.at]
    FROM (SELECT unnest(group_fingerprint) AS fingerprint, unnest(group_cause) AS cause, unnest(group_sample) AS sample,
        unnest(group_class) AS class, unnest(group_handler) AS handler, unnest(group_new) AS new, unnest(group_first) AS first,
        unnest(group_last) AS last, unnest(group_at) AS at) v
    WHERE v.new > 0
    ON CONFLICT (fingerprint) DO UPDATE SET pending = dlq_groups.pending + excluded.pending,
        last_seen = GREATEST(dlq_groups.last_seen, excluded.last_seen),
        last_entry_id = GREATEST(dlq_groups.last_entry_id, excluded.last_entry_id);
    INSERT INTO dlq_counts (event_type, topic, pending)
    SELECT v.type, v.topic, v.new
    FROM (SELECT unnest(count_type) AS type, unnest(count_topic) AS topic, unnest(count_new) AS new) v WHERE v.new > 0
    ON CONFLICT (event_type, topic) DO UPDATE SET pending = dlq_counts.pending + excluded.pending;
    INSERT INTO dlq_hours (hour, fingerprint, entries)
    SELECT v.at, v.fingerprint, v.new
    FROM (SELECT unnest(hour_at) AS at, unnest(hour_fingerprint) AS fingerprint, unnest(hour_new) AS new) v WHERE v.new > 0
    ON CONFLICT (hour, fingerprint) DO UPDATE SET entries = dlq_hours.entries + excluded.entries;
    RETURN ids;
END
$$;
-- +goose StatementEnd

-- One letter, with half of the work. The result is its id, or NULL when its key is there.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION dlq_put_letter(
    v_dedup_key BYTEA, v_event_id TEXT, v_event_type TEXT, v_source_table TEXT, v_source_id TEXT, v_correlation_id TEXT,
    v_broker TEXT, v_topic TEXT, v_consumer TEXT, v_handler TEXT, v_exchange TEXT, v_routing_key BYTEA, v_message_key BYTEA,
    v_kafka_partition INTEGER, v_kafka_offset BIGINT, v_position TEXT, v_broker_time TIMESTAMPTZ, v_reason TEXT,
    v_error_message TEXT, v_error_code TEXT, v_error_class TEXT, v_rule TEXT, v_fingerprint TEXT, v_attempts INTEGER,
    v_max_retries INTEGER, v_created_at TIMESTAMPTZ, v_first_failure_at TIMESTAMPTZ, v_changed_by TEXT,
    v_message_uuid BYTEA, v_payload BYTEA, v_payload_json TEXT, v_payload_sha256 BYTEA, v_content_type TEXT, v_headers TEXT,
    v_stack_trace TEXT, v_cause TEXT, v_hour TIMESTAMPTZ
) RETURNS BIGINT LANGUAGE plpgsql AS $$
DECLARE
    v_id BIGINT;
BEGIN
    PERFORM set_config('synchronous_commit', 'on', true); -- a database may have it off
    INSERT INTO dlq_keys (dedup_key, event_id, source_id, correlation_id) VALUES (v_dedup_key, v_event_id, v_source_id, v_correlation_id)
        ON CONFLICT (dedup_key) DO NOTHING RETURNING entry_id INTO v_id;
    IF v_id IS NULL THEN
        RETURN NULL;
    END IF;
    INSERT INTO dlq_entries (id, dedup_key, event_id, event_type, source_table, source_id, correlation_id, broker, topic, consumer, handler,
        exchange, routing_key, message_key, kafka_partition, kafka_offset, position, broker_time, reason, error_message, error_code,
        error_class, rule, fingerprint, attempts, max_retries, created_at, first_failure_at, died_at, last_seen_at, changed_at, changed_by,
        payload_size)
    VALUES (v_id, v_dedup_key, v_event_id, v_event_type, v_source_table, v_source_id, v_correlation_id, v_broker, v_topic, v_consumer,
        v_handler, v_exchange, v_routing_key, v_message_key, v_kafka_partition, v_kafka_offset, v_position, v_broker_time, v_reason,
        v_error_message, v_error_code, v_error_class, v_rule, v_fingerprint, v_attempts, v_max_retries, v_created_at,
        v_first_failure_at, v_created_at, v_created_at, v_created_at, v_changed_by, octet_length(v_payload));
    INSERT INTO dlq_bodies (entry_id, revision, message_uuid, payload, payload_json, payload_sha256, content_type, headers, stack_trace)
    VALUES (v_id, 0, v_message_uuid, v_payload, v_payload_json::jsonb, v_payload_sha256, v_content_type, v_headers, v_stack_trace);
    INSERT INTO dlq_groups (fingerprint, cause, sample, error_class, handler, pending, first_seen, last_seen, last_entry_id)
    VALUES (v_fingerprint, v_cause, v_error_message, coalesce(v_error_class, ''), v_handler, 1, v_created_at, v_created_at, v_id)
    ON CONFLICT (fingerprint) DO UPDATE SET pending = dlq_groups.pending + 1,
        last_seen = GREATEST(dlq_groups.last_seen, excluded.last_seen),
        last_entry_id = GREATEST(dlq_groups.last_entry_id, excluded.last_entry_id);
    INSERT INTO dlq_counts (event_type, topic, pending) VALUES (v_event_type, v_topic, 1)
    ON CONFLICT (event_type, topic) DO UPDATE SET pending = dlq_counts.pending + 1;
    INSERT INTO dlq_hours (hour, fingerprint, entries) VALUES (v_hour, v_fingerprint, 1)
    ON CONFLICT (hour, fingerprint) DO UPDATE SET entries = dlq_hours.entries + 1;
    RETURN v_id;
END
$$;
-- +goose StatementEnd

-- +goose Down
DROP FUNCTION dlq_put_letter;
DROP FUNCTION dlq_put_letters;
