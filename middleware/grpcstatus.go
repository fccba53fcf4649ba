package middleware

import "reflect"

// grpcStatus reads the code of a gRPC error. Its method returns grpc's own *status.Status, so this package cannot
// declare a matching interface without importing grpc: the method is found by name, and Code is called on its result,
// which must be an unsigned number. The names are constants, so the linker still drops unused methods.
func grpcStatus(err error) (Verdict, bool) {
	code, ok := findInTree(err, 0, grpcCode)
	if !ok || code >= uint64(len(grpcCodes)) {
		return noVerdict()
	}
	c := grpcCodes[code]
	if c.kind == KindUnknown {
		return noVerdict()
	}
	return Verdict{Kind: c.kind, Rule: "grpc " + c.name, Code: c.name}, true
}

func grpcCode(err error) (uint64, bool) {
	method := reflect.ValueOf(err).MethodByName("GRPCStatus")
	if !method.IsValid() || method.Type().NumIn() != 0 || method.Type().NumOut() != 1 {
		return 0, false
	}
	status := method.Call(nil)[0]
	if status.Kind() == reflect.Pointer && status.IsNil() {
		return 0, false // in grpc, a nil *Status means OK, which is not an error
	}
	code := status.MethodByName("Code")
	if !code.IsValid() || code.Type().NumIn() != 0 || code.Type().NumOut() != 1 ||
		code.Type().Out(0).Kind() != reflect.Uint32 {
		return 0, false
	}
	return code.Call(nil)[0].Uint(), true
}

// grpcCodes are indexed by code.
var grpcCodes = [...]struct {
	name string
	kind Kind
}{
	{"OK", KindUnknown},
	{"Canceled", KindRetryable},
	{"Unknown", KindUnknown},
	{"InvalidArgument", KindPermanent},
	{"DeadlineExceeded", KindRetryable},
	{"NotFound", KindPermanent},
	{"AlreadyExists", KindPermanent},
	{"PermissionDenied", KindPermanent},
	{"ResourceExhausted", KindRetryable},
	{"FailedPrecondition", KindPermanent},
	{"Aborted", KindRetryable},
	{"OutOfRange", KindPermanent},
	{"Unimplemented", KindPermanent},
	{"Internal", KindRetryable},
	{"Unavailable", KindRetryable},
	{"DataLoss", KindPermanent},
	{"Unauthenticated", KindPermanent},
}
