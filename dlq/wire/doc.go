// Package wire has the values of dead letters that programs exchange, with their JSON form: filters, groups and
// statistics, redrive runs, audit records, and the requests about them. The REST API and its client, exports, the spool
// and the command read and write these types. It imports no driver and no client, so that all of them can use it.
//
// An [Entry] and a [Body] are the JSON form of driver.Entry and driver.Body, in which restricted values are hidden
// before anything is encoded. The other types are also those of packages driver and redrive, under their names there.
//
// Names and meanings only grow: fields may be added, but are never renamed. Files have the version of their form, see
// [Letter].
package wire
