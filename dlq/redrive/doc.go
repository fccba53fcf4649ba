// Package redrive sends dead letters back in bulk: by runs, which a person starts, and by rules, which start runs
// automatically.
//
// A bulk redrive is a resource, a [Run]. Its set is frozen when it starts; then it proceeds in steps of one transaction
// each:
//
//	runner, err := redrive.NewRunner(letters.Manager(broker), redrive.Config{})
//	// How many, of which topics, and ten of them after the jq expression.
//	preview, err := runner.PreviewRun(ctx, spec, 10)
//	run, err := runner.StartRun(ctx, redrive.Spec{
//		Filter: dlq.Filter{Fingerprint: group}, Canary: []int{1, 10, 100}, Rate: 500, JQ: `.currency //= "EUR"`,
//	}, dlq.By{Actor: "ana", Note: "the bank is open"})
//	go runner.Work(ctx)                               // in the server: carries runs on, those of dead processes too
//	run, err = runner.Drive(ctx, run.ID)              // or here and now: one run, until it ends or needs a person
//
// A run is a pipeline: while the broker confirms up to two batches, one transaction claims the next batch and records
// the previous one, and the entries after it are read. Batches grow up to 1,000 entries (Config.Batch) while the broker
// is fast; a pause, a cancel and a stop take effect between batches. A redriver that publishes whole batches
// ([BatchRedriver]; those of brokers/rabbitmq and dlq/collector do) is called once per batch.
//
// The outcome of a message is what its consumer reports, not that it was published; Spec.CloseOnPublish is for
// consumers that report nothing. A run stops automatically when the share of failures exceeds Spec.Stop, or when the
// broker accepts nothing. What a process was publishing when it died is claimed in the store: the next process first
// waits for the outcomes of these messages, and resends only those without one after twice the publish timeout. A
// consumer that lags behind further may get such a message twice, with the same message id.
//
// [Runner.Automate] redrives by rules, with backoff. Nothing is automatic without it.
package redrive
