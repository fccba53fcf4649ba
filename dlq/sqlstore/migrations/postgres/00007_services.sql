-- +goose Up

-- What the processes of services do now: each keeps its last report. The row without a process is what an operator wants of all of them.
CREATE TABLE dlq_services (
    service   TEXT NOT NULL,
    process   TEXT NOT NULL,
    at        TIMESTAMPTZ NOT NULL,
    paused    SMALLINT NOT NULL DEFAULT 0,
    paused_by TEXT NOT NULL,
    report    TEXT NOT NULL,
    PRIMARY KEY (service, process)
);

-- +goose Down
DROP TABLE dlq_services;
