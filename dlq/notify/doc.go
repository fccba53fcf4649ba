// Package notify notifies people of a cause that is new or has come back, a redrive run that stopped or waits for
// approval, and a store that does not answer. It finds these events in the store and publishes each as a message; the
// handler of the message calls [Notifier.Deliver], which posts it to a webhook or to Slack. The handler is like any
// other, so its failures are retried by the pipeline that it runs in:
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
// Of all processes with one store, one publishes at a time. The store records which notices each receiver has had, so
// they are not sent again after a restart; those of the last day that it has not had are. A notice is sent twice, with
// the same id, when a process dies, or loses its turn, between sending and recording it. While the store does not
// answer, the process that had the last turn reports that.
//
// # Headers
//
// A webhook is signed according to Standard Webhooks: webhook-id, webhook-timestamp (seconds, of this attempt) and
// webhook-signature, which is "v1," and the base64 of HMAC-SHA256 over "id.timestamp.body" with the secret. The part of
// a secret after whsec_ is base64.
//
// # Limits
//
// URLs are https, or http to this machine; they come from the configuration alone, redirects are not followed, and
// proxies are those of the environment. A notice shows no more than viewers see. A receiver gets at most
// [Receiver].PerHour notices an hour; more wait for the next one.
package notify
