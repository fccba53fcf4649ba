// Package services starts real servers for tests: installed RabbitMQ, PostgreSQL, MariaDB, MySQL and Kafka, on free
// loopback ports and in temporary directories, and stops them by their process id.
//
// Most tests share one server per test process and use separate objects on it:
//
//	func TestMain(m *testing.M) { services.Main(m) }
//
//	func TestSomething(t *testing.T) {
//		url := services.SharedRabbitMQ(t).VHost(t)      // amqp://... of an empty virtual host
//		dsn := services.SharedPostgres(t).Database(t)   // postgres://... of an empty database
//		...
//	}
//
// A test that kills or configures a server starts a separate one with RabbitMQ, Postgres, MariaDB, MySQL or Kafka.
//
// A shared server comes from the environment (TEST_AMQP_URL, TEST_AMQP4_URL, TEST_KAFKA_BROKERS, TEST_POSTGRES_URL,
// TEST_MARIADB_URL, TEST_MYSQL_URL) or else is one installed by integration/install.sh. If there is neither, the test
// is skipped with a message that names the remedy; with REQUIRE_SERVICES=1 it fails instead, so that a CI run cannot
// pass without having tested anything. OPTIONAL_SERVICES=mysql,rabbitmq4 exempts these, for days on which their archive
// is unreachable.
package services
