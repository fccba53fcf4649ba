// Package services starts real servers for tests: RabbitMQ, PostgreSQL, MariaDB and Kafka from the machine's own
// packages, on free loopback ports and in temporary directories, and stops them by their process id.
//
// Most tests share one server per test process and keep apart by what they create in it:
//
//	func TestMain(m *testing.M) { services.Main(m) }
//
//	func TestSomething(t *testing.T) {
//		url := services.SharedRabbitMQ(t).VHost(t)      // amqp://... of an empty virtual host
//		dsn := services.SharedPostgres(t).Database(t)   // postgres://... of an empty database
//		...
//	}
//
// A test that kills or configures a server starts one of its own with RabbitMQ, Postgres, MariaDB or Kafka.
//
// A shared server is looked for in this order: the environment (TEST_AMQP_URL, TEST_KAFKA_BROKERS, TEST_POSTGRES_URL,
// TEST_MYSQL_URL), then the machine's packages, which integration/install.sh brings. If neither is there, the test is
// skipped with a message that says what to do; with REQUIRE_SERVICES=1 it fails instead, so that a CI run cannot pass
// by having tested nothing.
package services
