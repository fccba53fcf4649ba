//go:build !unix

package spool_test

import "testing"

func limitFileSize(t *testing.T, _ string) {
	t.Helper()
	t.Skip("this system has no limit of file sizes")
}
