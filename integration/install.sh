#!/usr/bin/env bash
# Installs what the integration tests run against: RabbitMQ, PostgreSQL and MariaDB from Debian's packages, promtool,
# the jars of Apache Kafka through Maven, and MySQL from Debian's unstable packages into a directory of its own. No
# service is started or left running: the tests start their own, on loopback ports and temporary directories (see the
# services package).
#
#   integration/install.sh [rabbitmq] [postgres] [mariadb] [mysql] [kafka] [promtool] [chromium] [build]
#
# Without arguments: everything except chromium and build (make, and a C compiler for the race detector), and except MySQL
# where apt knows no archive of Debian, as on Ubuntu. Running it again costs about a second when nothing is missing.
# Kafka's jars go to $REDRIVE_KAFKA_LIBS, by default redrive/kafka-<version> in the user's cache directory; MySQL with
# all its libraries goes to $REDRIVE_MYSQL, by default redrive/mysql there (delete it to get what the archive has now).
#
# The exit status is 75 when only MySQL is missing because the archive does not give it today: it cannot be reached, has
# withdrawn the package, or is in the middle of a change that leaves its dependencies unmet. Every other fault gives 1.
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

cache=${XDG_CACHE_HOME:-${HOME:?}/.cache}/redrive
log=$(mktemp)
scratch= # a directory of mysql's
policy=/usr/sbin/policy-rc.d
policy_changed=

restore() {
  if [ -n "$policy_changed" ]; then
    as_root rm -f "$policy"
    if [ -e "$policy.redrive" ]; then as_root mv "$policy.redrive" "$policy"; fi
  fi
  rm -rf "$log" ${scratch:+"$scratch"}
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
  libs=${REDRIVE_KAFKA_LIBS:-$cache/kafka-$version}
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

# no_mysql ends with the status that says: not today.
no_mysql() {
  tail -n 20 "$log" >&2
  say "MySQL: $*. It is in Debian's unstable archive only, which changes daily; try again later, name another archive in"
  say "REDRIVE_MYSQL_ARCHIVE (one of Debian's snapshots, for instance), or start it with make up and set TEST_MYSQL_URL"
  exit 75
}

# mysql_root unpacks MySQL's server and everything that it needs, down to the C library, into a directory. Stable Debian
# has no MySQL, and the libraries of unstable cannot be installed beside its own; unpacked and started through their own
# loader they leave the machine alone. apt resolves, downloads and verifies them as for an empty machine: its state is a
# directory of ours, and only the way to the archive (proxies, mirrors) is the machine's.
mysql_root() {
  local root=${REDRIVE_MYSQL:-$cache/mysql} keys=/usr/share/keyrings/debian-archive-keyring.gpg archive deb name apt loader
  [ ! -e "$root/.complete" ] || return 0
  command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || die "mysql: needs apt and dpkg; $elsewhere"
  [ -e "$keys" ] || die "mysql: needs Debian's keys, from the package debian-archive-keyring; $elsewhere"
  # The machine's own archive, if it is Debian's. Security updates are in one of their own, which has no unstable.
  archive=${REDRIVE_MYSQL_ARCHIVE:-$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 2>/dev/null | grep -E '/debian/?$' | head -n 1 || true)}
  if [ -z "$archive" ]; then
    [ "$mysql" = asked ] || { say "without MySQL: apt knows no archive of Debian here. OPTIONAL_SERVICES=mysql skips its tests"; return 0; }
    die "mysql: this machine's apt knows no archive of Debian: name one in REDRIVE_MYSQL_ARCHIVE; $elsewhere"
  fi

  say "fetching MySQL from Debian unstable"
  scratch=$(mktemp -d)
  chmod 755 "$scratch" # apt downloads as a user of its own
  mkdir -p "$scratch"/{etc/preferences,state/lists/partial,cache/archives/partial,dpkg}
  : >"$scratch/dpkg/status"
  # Testing is there for a library that unstable has just replaced and MySQL still needs.
  printf 'Types: deb\nURIs: %s\nSuites: sid testing\nComponents: main\nSigned-By: %s\n' "$archive" "$keys" >"$scratch/etc/mysql.sources"
  apt=(apt-get -qq -o Dir::State="$scratch/state" -o Dir::State::status="$scratch/dpkg/status" -o Dir::Cache="$scratch/cache"
    -o Dir::Etc::SourceList=/dev/null -o Dir::Etc::SourceParts="$scratch/etc" -o Dir::Etc::Preferences=/dev/null
    -o Dir::Etc::PreferencesParts="$scratch/etc/preferences" -o Dir::Cache::archives=archives
    -o Acquire::Languages=none -o Acquire::Retries=3 -o APT::Update::Error-Mode=any -o APT::Install-Recommends=false)
  [ -z "${REDRIVE_MYSQL_ARCHIVE:-}" ] || apt+=(-o Acquire::Check-Valid-Until=false) # a snapshot is as old as it is
  "${apt[@]}" update >"$log" 2>&1 </dev/null || no_mysql "the archive cannot be read"
  "${apt[@]}" -y --download-only install mysql-server-core >"$log" 2>&1 </dev/null || no_mysql "the archive does not give it"

  mkdir -p "$(dirname "$root")"
  rm -rf "$root.partial"
  mkdir "$root.partial"
  for deb in "$scratch"/cache/archives/*.deb; do
    name=$(basename "$deb")
    case $name in perl* | libperl*) continue ;; esac # for scripts beside the server
    dpkg-deb --fsys-tarfile "$deb" | tar -x -C "$root.partial" --exclude=./usr/bin --exclude=./usr/share/doc --exclude=./usr/share/man
  done
  loader=$(cd "$root.partial" && echo usr/lib/*-linux-gnu*/ld-linux*.so.*)
  cat >"$root.partial/mysqld" <<EOF
#!/bin/sh
# Starts the server with the C library that it was built for.
root=\$(dirname "\$(readlink -f "\$0")")
exec "\$root/$loader" --library-path "\$root/${loader%/*}" "\$root/usr/sbin/mysqld" "\$@" --basedir="\$root/usr"
EOF
  chmod +x "$root.partial/mysqld"
  "$root.partial/mysqld" --version >"$log" 2>&1 || no_mysql "its server does not run on this machine"
  sed 's/.* Ver /MySQL /' "$log" >"$root.partial/.complete" # written last, so that an interrupted unpacking is not taken for a whole one
  rm -rf "$root"
  mv "$root.partial" "$root"
}

mysql=
[ $# -gt 0 ] || { mysql=default && set -- rabbitmq postgres mariadb promtool kafka; }
debian=()
kafka=
for what in "$@"; do
  case $what in
    rabbitmq) debian+=(rabbitmq-server) ;;
    postgres | postgresql) debian+=(postgresql) ;;
    mariadb) debian+=(mariadb-server) ;;
    mysql) mysql=asked ;;
    promtool) debian+=(prometheus) ;;
    chromium) debian+=(chromium) ;;
    build) debian+=(make gcc libc6-dev git) ;;
    kafka) kafka=1 ;;
    *) die "unknown: $what (known: rabbitmq postgres mariadb mysql kafka promtool chromium build)" ;;
  esac
done
[ ${#debian[@]} -eq 0 ] || packages "${debian[@]}"
[ -z "$kafka" ] || kafka_jars
[ -z "$mysql" ] || mysql_root # the last, because it may be the only one that is missing
