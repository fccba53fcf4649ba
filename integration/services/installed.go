package services

import (
	"errors"
	"os"
)

// installed returns the account for a server of which all the files must be there.
func installed(service, env, userName string, files ...string) (account, error) {
	unavailable := func(cause error) (account, error) {
		return account{}, &UnavailableError{Service: service, Env: env, Cause: cause}
	}
	if !nativeSupported {
		return unavailable(errors.New("servers are started natively only on Linux"))
	}
	for _, file := range files {
		if _, err := os.Stat(file); err != nil {
			return unavailable(err)
		}
	}
	owner, err := lookupAccount(userName)
	if err != nil {
		return unavailable(err)
	}
	return owner, nil
}
