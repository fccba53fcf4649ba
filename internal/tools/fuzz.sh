#!/usr/bin/env bash
# Runs every fuzz target of the library, each for a number of inputs or a time: fuzz.sh 40000x, fuzz.sh 5m.
# A number is the better gate: a time can end in the middle of an input, and go test then reports "context deadline exceeded"
# as a failure of the target (golang/go#75804).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

# sources prints what the target in a file is built of: its package or, where other tests of the package need SQLite,
# the package's own files and that one. SQLite takes minutes to build for a fuzzer.
sources() {
  local package
  package=$(dirname "$1")
  if ! go list -deps -test "$package" | grep '^modernc.org/sqlite/lib$' >/dev/null; then
    echo "$package"
    return
  fi
  grep -q '^package .*_test$' "$1" || go list -f "{{range .GoFiles}}$package/{{println .}}{{end}}" "$package"
  echo "$1"
}

found=0
failed=()
while IFS=: read -r file line; do
  name=${line#func }
  name=${name%%(*}
  package=$(dirname "$file")
  found=$((found + 1))
  echo "fuzz $package $name"
  mapfile -t built < <(sources "$file")
  go test -run '^$' -fuzz "^$name\$" -fuzztime "${1:-40000x}" "${built[@]}" || failed+=("$package $name")
done < <(grep -rHo --include='*_test.go' --exclude-dir=integration '^func Fuzz[A-Za-z0-9_]*(' . | sort)

echo "$found fuzz targets, ${#failed[@]} failed"
if [ "$found" = 0 ]; then echo "fuzz: no target found, which cannot be" >&2; exit 1; fi
if [ ${#failed[@]} -gt 0 ]; then printf '  failed: %s\n' "${failed[@]}"; exit 1; fi
