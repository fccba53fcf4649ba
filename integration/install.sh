#!/usr/bin/env bash
# Installs what the integration tests run against: RabbitMQ, PostgreSQL and MariaDB from Debian's packages, promtool,
# and the jars of Apache Kafka through Maven. No service is started or left running: the tests start their own, on
# loopback ports and temporary directories (see the services package).
#
#   integration/install.sh [rabbitmq] [postgres] [mariadb] [kafka] [promtool] [chromium] [build]
#
# Without arguments: everything except chromium and build (make, and a C compiler for the race detector). Running it again costs about a second when nothing is missing.
# Kafka's jars go to $REDRIVE_KAFKA_LIBS, by default redrive/kafka-<version> in the user's cache directory.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
export DEBIAN_FRONTEND=noninteractive

# What those can do who cannot install Debian's packages.
elsewhere='elsewhere, start servers with make up (docker compose) and set the TEST_* variables that CONTRIBUTING.md lists'

say() { printf 'install: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

# as_root runs a command as root, through sudo if we are somebody else.
as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n --preserve-env=DEBIAN_FRONTEND "$@"; fi
}

log=$(mktemp)
policy=/usr/sbin/policy-rc.d
policy_changed=

restore() {
  if [ -n "$policy_changed" ]; then
    as_root rm -f "$policy"
    if [ -e "$policy.redrive" ]; then as_root mv "$policy.redrive" "$policy"; fi
  fi
  rm -f "$log"
}
trap restore EXIT

# quietly keeps the output of a command to itself unless the command fails.
quietly() {
  if ! "$@" >"$log" 2>&1 </dev/null; then
    tail -n 40 "$log" >&2
    die "failed: $*"
  fi
}

# forbid_starts makes the packages' scripts install their services without starting them, which is what invoke-rc.d
# asks policy-rc.d about. The machine's own answer, if it has one, comes back when we are done.
forbid_starts() {
  [ -z "$policy_changed" ] || return 0
  if [ -e "$policy" ]; then as_root mv "$policy" "$policy.redrive"; fi
  policy_changed=1
  printf '#!/bin/sh\nexit 101\n' >"$log"
  as_root install -m 0755 "$log" "$policy"
}

packages() {
  local missing=() p
  for p in "$@"; do
    dpkg-query -W -f '${db:Status-Status}' "$p" 2>/dev/null | grep -qx installed || missing+=("$p")
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  command -v apt-get >/dev/null || die "${missing[*]}: only Debian's and Ubuntu's packages are known here; $elsewhere"
  if [ "$(id -u)" != 0 ] && ! sudo -n true 2>/dev/null; then
    die "needs root for ${missing[*]}: run sudo -v before it, or as root: apt-get install --no-install-recommends ${missing[*]}; $elsewhere"
  fi
  say "installing ${missing[*]}"
  forbid_starts
  quietly as_root apt-get -qq -o DPkg::Lock::Timeout=120 update
  quietly as_root apt-get -qq -y -o DPkg::Lock::Timeout=120 -o Dpkg::Options::=--force-confold \
    install --no-install-recommends "${missing[@]}"
  # Where systemd runs, the next boot would start them all the same. What was installed before us stays as it was.
  if [ -d /run/systemd/system ]; then
    for p in "${missing[@]}"; do
      case $p in
        rabbitmq-server | postgresql | prometheus) as_root systemctl --quiet disable "$p" || true ;;
        mariadb-server) as_root systemctl --quiet disable mariadb || true ;;
      esac
    done
  fi
}

kafka_jars() {
  local pom=$here/kafka/pom.xml version libs
  version=$(sed -n 's:.*<kafka.version>\(.*\)</kafka.version>.*:\1:p' "$pom")
  libs=${REDRIVE_KAFKA_LIBS:-${XDG_CACHE_HOME:-$HOME/.cache}/redrive/kafka-$version}
  if [ -e "$libs/.complete" ] && cmp -s "$pom" "$libs/.complete"; then return 0; fi
  command -v java >/dev/null || packages default-jre-headless
  command -v mvn >/dev/null || packages maven
  say "fetching the jars of Kafka $version"
  mkdir -p "$(dirname "$libs")"
  rm -rf "$libs.partial"
  quietly mvn -B -q -f "$pom" dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory="$libs.partial"
  cp "$pom" "$libs.partial/.complete" # written last, so that an interrupted download is not taken for a whole one
  rm -rf "$libs"
  mv "$libs.partial" "$libs"
}

[ $# -gt 0 ] || set -- rabbitmq postgres mariadb promtool kafka
debian=()
kafka=
for what in "$@"; do
  case $what in
    rabbitmq) debian+=(rabbitmq-server) ;;
    postgres | postgresql) debian+=(postgresql) ;;
    mariadb) debian+=(mariadb-server) ;;
    promtool) debian+=(prometheus) ;;
    chromium) debian+=(chromium) ;;
    build) debian+=(make gcc libc6-dev git) ;;
    kafka) kafka=1 ;;
    *) die "unknown: $what (known: rabbitmq postgres mariadb kafka promtool chromium build)" ;;
  esac
done
[ ${#debian[@]} -eq 0 ] || packages "${debian[@]}"
[ -z "$kafka" ] || kafka_jars
