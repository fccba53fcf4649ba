package kafka

import (
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"
)

// Records that were polled before a partition was given up and assigned again must be ignored: they would advance its
// position past records that have not been handled.
func TestPartition_IgnoresRecordsOfItsPredecessor(t *testing.T) {
	p := &partition{more: make(chan struct{}, 1)}
	polled := kgo.FetchPartition{Records: []*kgo.Record{{Offset: 30}}}
	p.feed(polled)
	require.Empty(t, p.fetched)
	p.begun = true
	p.feed(polled)
	require.Len(t, p.fetched, 1)
}
