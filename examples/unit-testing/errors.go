package reminders

import "errors"

// ErrNoPhone means that a customer left no phone number, which no retry can change.
var ErrNoPhone = errors.New("reminder without a phone number")
