// Package wire is the JSON form of dead letters: entries and their bodies, filters, groups and statistics, redrive
// runs, audit records, and the requests about them. The REST API and its client, exports, the spool and the command
// read and write these types, and restricted values are hidden in them before anything is encoded.
//
// Names and meanings only grow: fields may be added, but are never renamed. Files have the version of their form, see
// [Letter].
package wire
