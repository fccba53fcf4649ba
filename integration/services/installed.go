package services

import (
	"errors"
	"os"
	"path/filepath"
)

var errNotLinux = errors.New("servers are started natively only on Linux")

// unpacked returns the directory that integration/install.sh has unpacked a server into: the one that dirEnv names, or
// name in the user's cache. probe is a file that it must have.
func unpacked(service, env, dirEnv, name, probe string) (string, error) {
	root := os.Getenv(dirEnv)
	err := errNotLinux
	if nativeSupported {
		err = nil
		if root == "" {
			root, err = os.UserCacheDir()
			root = filepath.Join(root, "redrive", name)
		}
		if err == nil {
			_, err = os.Stat(filepath.Join(root, probe))
		}
	}
	if err != nil {
		return "", &UnavailableError{Service: service, Env: env, Cause: err}
	}
	return root, nil
}

// installed returns the account for a server of which all the files must be there.
func installed(service, env, userName string, files ...string) (account, error) {
	unavailable := func(cause error) (account, error) {
		return account{}, &UnavailableError{Service: service, Env: env, Cause: cause}
	}
	if !nativeSupported {
		return unavailable(errNotLinux)
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
