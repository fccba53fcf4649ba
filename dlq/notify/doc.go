// Package notify tells people what needs them: a cause that is new or has come back, a redrive run that stopped or
// waits for approval, and a store that does not answer. It finds these in the store and publishes them as messages;
// their handler passes them to [Notifier.Deliver], which posts them to a webhook or to Slack. That is a
// handler like any other, so its failures are retried by the pipeline that it runs in:
//
//	notifier, err := notify.New(notify.Config{
//		Store: letters.Store(), Publisher: broker.Publisher(), Receivers: receivers,
//	})
//	for _, name := range notifier.Receivers() {
//		router.AddConsumerHandler("notify "+name, notify.Topic(name), broker.Subscriber(), func(m *message.Message) error {
//			return notifier.Deliver(m.Context(), name, m.Payload)
//		})
//	}
//	go notifier.Run(ctx)
//
// # Delivery semantics
//
// Of all processes with one store, one notifies at a time. The notices that a receiver has had are recorded in the
// store: they are not sent again after a restart, and the others are, for a day. A notice is sent twice, with the same
// id, when a process dies, or loses its turn, between sending and recording it. While the store does not answer, the
// process that had the last turn reports that.
//
// # Headers
//
// A webhook is signed as Standard Webhooks has it: webhook-id, webhook-timestamp (seconds, of this try) and
// webhook-signature, which is "v1," and the base64 of HMAC-SHA256 over "id.timestamp.body" with the secret. A secret
// that begins with whsec_ is base64 after it.
//
// # Limits
//
// URLs are https, or http to this machine; they come from the configuration alone, redirects are not followed, and
// proxies are those of the environment. What a notice tells is what viewers see. A receiver gets at most so many an
// hour; more wait for the next one.
package notify
