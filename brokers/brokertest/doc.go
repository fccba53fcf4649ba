// Package brokertest is the conformance suite for brokers, ours and third parties'. A driver that passes it keeps the
// promises of brokers.Broker: nothing lost, nothing early, retries for the failed consumer only, no hot loop, and a
// shutdown that returns unfinished messages. It includes Watermill's own suite.
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
// Every case opens its own brokers and uses its own topics, so one server serves all of them, in parallel. A case that
// needs a missing capability is skipped with the reason. Cases of an in-memory broker run in virtual time.
package brokertest
