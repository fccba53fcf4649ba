-- +goose Up

-- What the processes of services do now: each keeps its last report. The row without a process is what an operator wants of all of them.
CREATE TABLE dlq_services (
    service   VARCHAR(255) NOT NULL,
    process   VARCHAR(255) NOT NULL,
    at        DATETIME(6) NOT NULL,
    paused    SMALLINT NOT NULL DEFAULT 0,
    paused_by VARCHAR(255) NOT NULL,
    report    LONGTEXT NOT NULL,
    PRIMARY KEY (service, process)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;

-- +goose Down
DROP TABLE dlq_services;
