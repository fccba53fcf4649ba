// Package brokertest is the conformance suite for brokers, ours and third parties'. A driver that passes it keeps the
// promises of brokers.Broker: nothing is lost or delivered early, only the consumer that failed gets the retry, no
// failure causes a hot loop, and a shutdown returns unfinished messages. It includes Watermill's own suite.
//
//	func TestConformance(t *testing.T) {
//		brokertest.Run(t, brokertest.Harness{
//			Backend: func(t *testing.T) brokertest.Backend {
//				return brokertest.Backend{Open: func(cfg brokers.Config) (brokers.Broker, error) {
//					cfg.URL = serverURL
//					return brokers.OpenConfig(t.Context(), cfg)
//				}}
//			},
//			Factor: 0.05, // ten seconds of a timeline take half a second
//		})
//	}
//
// Every case opens its own brokers and uses its own topics, so all cases can run on one server in parallel. A case that
// needs a missing capability is skipped with the reason. Cases of an in-memory broker run in virtual time.
package brokertest
