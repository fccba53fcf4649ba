package services

import (
	"errors"
	"os"
	"path/filepath"
)

var errNotLinux = errors.New("servers are started natively only on Linux")

// unpacked returns the directory into which integration/install.sh has unpacked a server: the one that dirEnv names, or
// name in the user's cache. It must have the file probe.
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

// installed returns the account for a server, all of whose files must exist.
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
