-- +goose Up

-- A dead letter that is stored late, from a spool or an import, makes its cause as old as it is. A cause is no older than the deaths that are
-- known to have it: an entry may have died of another one first. The functions stay as they are but for these expressions.
-- +goose StatementBegin
DO $$
DECLARE
    change RECORD;
    old    TEXT;
BEGIN
    FOR change IN SELECT * FROM (VALUES
        ('dlq_put_letters', 'last_seen = GREATEST(', 'first_seen = LEAST(dlq_groups.first_seen, excluded.first_seen), last_seen = GREATEST('),
        ('dlq_put_letter', 'last_seen = GREATEST(', 'first_seen = LEAST(dlq_groups.first_seen, excluded.first_seen), last_seen = GREATEST('),
        ('dlq_count_later', '''first'', to_char(v_created ', '''first'', to_char(v_died ')) c (name, was, becomes)
    LOOP
        old := pg_get_functiondef(change.name::REGPROC);
        IF strpos(old, change.was) = 0 THEN
            RAISE EXCEPTION 'the function % is not that of this schema', change.name;
        END IF;
        EXECUTE replace(old, change.was, change.becomes);
    END LOOP;
END
$$;
-- +goose StatementEnd

-- +goose Down
-- +goose StatementBegin
DO $$
DECLARE
    change RECORD;
BEGIN
    FOR change IN SELECT * FROM (VALUES
        ('dlq_put_letters', 'first_seen = LEAST(dlq_groups.first_seen, excluded.first_seen), ', ''),
        ('dlq_put_letter', 'first_seen = LEAST(dlq_groups.first_seen, excluded.first_seen), ', ''),
        ('dlq_count_later', '''first'', to_char(v_died ', '''first'', to_char(v_created ')) c (name, was, becomes)
    LOOP
        EXECUTE replace(pg_get_functiondef(change.name::REGPROC), change.was, change.becomes);
    END LOOP;
END
$$;
-- +goose StatementEnd
