// Package cloudevents reads and writes envelopes as CloudEvents 1.0, so that services that use this standard need not
// know this module. It is a separate package because it links the CloudEvents SDK's event package.
//
// # Mapping
//
//	envelope             CloudEvents              remark
//	message_id           id
//	source               source                   "/" if empty, because CloudEvents require one
//	event name, queue    type                     the queue if there is no event name
//	queue                subject
//	timestamp            time
//	data                 data, data_base64        base64 where JSON would not give the bytes back
//	data content type    datacontenttype
//	version              envelopeversion          extension, as are all below
//	retry_count          retrycount               left out if 0
//	error                errormessage, errorcode, errortrace
//	                                              a text with control characters is a quoted Go string
//	original delay       originaldelay            ISO 8601 duration, "PT10S"
//	first failure        firstfailure
//	correlation_id       correlationid
//	trace context        traceparent, tracestate
//	ce_dataschema        dataschema               an attribute, in the metadata because it has no field
//	ce_name              name                     likewise: name is the header of Watermill's cqrs
//	other metadata       an extension of its name, if it is one ([a-z0-9], not used above), else a member of the JSON
//	                     object in the extension "metadata"
//
// The rest of the message's state (redrive, dead letter reason) stays in this module's own headers.
//
// # Headers
//
// In binary form the attributes are headers: ce_* on Kafka, as in the Kafka binding. The AMQP binding is written for
// AMQP 1.0 (cloudEvents:id); on RabbitMQ's 0-9-1 the headers are cloudEvents_*, and both spellings are read.
package cloudevents
