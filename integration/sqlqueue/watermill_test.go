package sqlqueue_test

import (
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/tests"

	"github.com/redrive-go/redrive/brokers"
)

// TestWatermillSuite is Watermill's own suite for pub/subs.
func TestWatermillSuite(t *testing.T) {
	onEach(t, func(t *testing.T, url string) {
		url = with(url, "x-drain=200ms&x-nack-delay=10ms&x-max-connections=4")
		construct := func(t *testing.T, group string) (message.Publisher, message.Subscriber) {
			t.Helper()
			b := openQueue(t, url)
			return b.Publisher(), b.Subscriber(brokers.WithGroup(group))
		}
		tests.TestPubSub(t, tests.Features{
			ConsumerGroups:                      true,
			GuaranteedOrder:                     true,
			GuaranteedOrderWithSingleSubscriber: true,
			Persistent:                          true,
			ForceShort:                          true,
		}, func(t *testing.T) (message.Publisher, message.Subscriber) {
			t.Helper()
			return construct(t, "")
		}, construct)
	})
}
