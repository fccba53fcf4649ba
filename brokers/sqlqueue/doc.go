// Package sqlqueue is a message queue in PostgreSQL, MySQL, MariaDB or SQLite, through database/sql.
package sqlqueue
