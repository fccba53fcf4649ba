package sqlstore

import (
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/internal/sqldb"
)

// mysql is the dialect of MySQL 8.0 and MariaDB 10.6 and later, through go-sql-driver/mysql.
type mysql struct{ valueParameters }

var _ dialect = mysql{}

func (mysql) name() sqldb.Dialect { return sqldb.MySQL }

// ready creates the triggers that keep the audit log append-only. By default, a server with a binary log only lets
// administrators create triggers; the store works without them.
func (mysql) ready(ctx context.Context, db *sql.DB) error {
	for _, event := range []string{"UPDATE", "DELETE"} {
		name := "dlq_audit_no_" + strings.ToLower(event)
		var there int
		err := db.QueryRowContext(ctx, "SELECT count(*) FROM information_schema.triggers"+
			" WHERE trigger_schema = DATABASE() AND trigger_name = ?", name).Scan(&there)
		if err != nil {
			return fmt.Errorf("look for triggers: %w", err)
		}
		if there > 0 {
			continue
		}
		_, err = db.ExecContext(ctx, "CREATE TRIGGER "+name+" BEFORE "+event+" ON dlq_audit FOR EACH ROW"+
			" SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'dlq_audit is append-only'")
		// 1359: another process was faster. 1142, 1227, 1419: not allowed.
		if err != nil && !sqldb.IsCode(err, "1359", "1142", "1227", "1419") {
			return fmt.Errorf("trigger: %w", err)
		}
	}
	return nil
}

// insertEntries marks its rows with a token, because MySQL's INSERT does not return which rows are new.
func (mysql) insertEntries(ctx context.Context, s *Store, tx *sql.Tx, rows [][]any) (map[driver.Key]int64, error) {
	ids := make(map[driver.Key]int64, len(rows))
	columns := append([]string{"put_token"}, entryColumns...)
	token := rand.Int64() //nolint:gosec // not a secret
	for chunk := range slices.Chunk(rows, maxRows) {
		args := make([]any, 0, len(chunk)*len(columns))
		keys := make([]any, 0, len(chunk)+1)
		for _, row := range chunk {
			args = append(append(args, token), row...)
			keys = append(keys, row[0])
		}
		// Not INSERT IGNORE: it ignores more than existing keys.
		query := insertInto("dlq_entries", columns, len(chunk)) + " ON DUPLICATE KEY UPDATE id = id"
		if _, err := s.exec(ctx, tx, query, args...); err != nil {
			return nil, err
		}
		err := scanIDs(s.query(ctx, tx, "SELECT id, dedup_key FROM dlq_entries WHERE dedup_key IN "+
			questionMarks(len(chunk), 1)+" AND put_token = ?", append(keys, token)...))(ids)
		if err != nil {
			return nil, err
		}
	}
	return ids, nil
}

func (mysql) contains(column, text string, parameter func(any) string) string {
	return column + " COLLATE utf8mb4_general_ci LIKE " + parameter(likePattern(withoutMarks(text))) + " ESCAPE '!'"
}

func (mysql) containsBytes(column, parameter string) string {
	return "LOCATE(" + parameter + ", " + column + ") > 0"
}

// mysqlPart keeps a statement below the smallest max_allowed_packet in use (4 MiB), even with every byte escaped.
const mysqlPart = 1 << 20

func (mysql) partSize() int { return mysqlPart }

// MySQL reads JSON that is nested up to 100 deep and numbers that fit a double, MariaDB 32 deep, and neither reads lone
// surrogates.
var mysqlJSON = jsonLimits{bytes: mysqlPart, depth: 30, number: doubleNumber, text: true}

// projection is 1 for JSON: the view then converts the payload to text.
func (mysql) projection(payload []byte) any {
	if mysqlJSON.accept(payload) {
		return 1
	}
	return 0
}

// lockTables locks the existing rows, because LOCK TABLES would commit. The count of a cause or hour that is new in the
// meantime may be missing until the next recount.
func (mysql) lockTables(tables []string) []string {
	return sqldb.Map(tables, func(table *string) string { return "SELECT count(*) FROM " + *table + " FOR UPDATE" })
}
