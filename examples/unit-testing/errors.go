package reminders

import "errors"

// ErrNoPhone says that a customer left no phone number: no retry will find one.
var ErrNoPhone = errors.New("reminder without a phone number")
