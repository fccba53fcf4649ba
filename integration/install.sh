#!/usr/bin/env bash
# Installs the servers and tools that the integration tests need: RabbitMQ, PostgreSQL with pgbouncer, MariaDB, promtool
# and systemd-analyze from Debian's packages, the jars of Apache Kafka with Maven, schemathesis from PyPI, and MySQL and
# RabbitMQ 4 from Debian's unstable packages into separate directories. No service is started or left running: the tests
# start their own servers, on loopback ports and in temporary directories (see the services package).
#
#   integration/install.sh [rabbitmq] [rabbitmq4] [postgres] [pgbouncer] [mariadb] [mysql] [kafka] [promtool] [systemd] [schemathesis]
#                           [chromium] [build]
#
# Without arguments: everything except chromium and build (make, and a C compiler for the race detector), and except
# MySQL and RabbitMQ 4 where apt knows no archive of Debian, as on Ubuntu. Running it again takes about a second if
# nothing is missing. Kafka's jars go to $REDRIVE_KAFKA_LIBS, by default redrive/kafka-<version> in the user's cache
# directory; MySQL with all its libraries goes to $REDRIVE_MYSQL, by default redrive/mysql there, and RabbitMQ 4 with
# its Erlang to $REDRIVE_RABBITMQ4, by default redrive/rabbitmq4 (delete a directory to install the current version).
#
# The exit status is 75 if only MySQL or RabbitMQ 4 is missing because the archive does not provide it today: it is
# unreachable, has withdrawn the package, or is being changed so that dependencies are unmet. It is 1 after any other
# error.
set -euo pipefail
shopt -s extglob

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
export DEBIAN_FRONTEND=noninteractive

# What to do on systems without Debian's packages.
elsewhere='elsewhere, start servers with make up (docker compose) and set the TEST_* variables that CONTRIBUTING.md lists'

say() { printf 'install: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

# as_root runs a command as root, with sudo if we are another user.
as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n --preserve-env=DEBIAN_FRONTEND "$@"; fi
}

cache=${XDG_CACHE_HOME:-${HOME:?}/.cache}/redrive
log=$(mktemp)
scratch= # a directory for unpack
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

# quietly shows the output of a command only if it fails.
quietly() {
  if ! "$@" >"$log" 2>&1 </dev/null; then
    tail -n 40 "$log" >&2
    die "failed: $*"
  fi
}

# forbid_starts makes the packages' scripts install their services without starting them, by the policy-rc.d script that
# invoke-rc.d calls. If the machine has its own policy-rc.d, it is restored at the end.
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
  # With systemd, the next boot would start them anyway. Services that were installed before are not changed.
  if [ -d /run/systemd/system ]; then
    for p in "${missing[@]}"; do
      case $p in
        rabbitmq-server | postgresql | pgbouncer | prometheus) as_root systemctl --quiet disable "$p" || true ;;
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
  cp "$pom" "$libs.partial/.complete" # written last, so that an interrupted download is not treated as complete
  rm -rf "$libs"
  mv "$libs.partial" "$libs"
}

# unavailable exits with the status for "not available today". Its second argument is a variable that names another
# archive.
unavailable() {
  tail -n 20 "$log" >&2
  say "$1: $3. It is taken from Debian's unstable archive, which changes daily; try again later, name another archive in"
  say "$2 (such as one of Debian's snapshots), or start it with make up and set its TEST_* variable"
  exit 75
}

# unpack fills the directory $root.partial with a package of Debian unstable and everything that it needs, down to the C
# library. The libraries of unstable cannot be installed along with those of stable, but if they are unpacked and
# started with their own loader, the machine is not changed. apt resolves, downloads and verifies them as for an empty
# machine: its state is in our directory, and only the settings for reaching the archive (proxies, mirrors) are the
# machine's. Afterwards $loader is the path of the loader in the directory.
#
#   unpack NAME VARIABLE PACKAGE [PATTERN of packages to leave out]
unpack() {
  local name=$1 variable=$2 package=$3 without=${4:-} keys=/usr/share/keyrings/debian-archive-keyring.gpg archive=${!2:-} deb apt
  command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || die "$name: needs apt and dpkg; $elsewhere"
  [ -e "$keys" ] || die "$name: needs Debian's keys, from the package debian-archive-keyring; $elsewhere"
  # Use the machine's archive if it is Debian's. Security updates are in a separate one, which has no unstable suite.
  [ -n "$archive" ] || archive=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 2>/dev/null | grep -E '/debian/?$' | head -n 1 || true)
  [ -n "$archive" ] || die "$name: this machine's apt knows no archive of Debian: name one in $variable; $elsewhere"

  say "fetching $name from Debian unstable"
  rm -rf ${scratch:+"$scratch"}
  scratch=$(mktemp -d)
  chmod 755 "$scratch" # apt downloads as another user
  mkdir -p "$scratch"/{etc/preferences,state/lists/partial,cache/archives/partial,dpkg}
  : >"$scratch/dpkg/status"
  # Testing is included for libraries that unstable has just replaced and the package still needs.
  printf 'Types: deb\nURIs: %s\nSuites: sid testing\nComponents: main\nSigned-By: %s\n' "$archive" "$keys" >"$scratch/etc/debian.sources"
  apt=(apt-get -qq -o Dir::State="$scratch/state" -o Dir::State::status="$scratch/dpkg/status" -o Dir::Cache="$scratch/cache"
    -o Dir::Etc::SourceList=/dev/null -o Dir::Etc::SourceParts="$scratch/etc" -o Dir::Etc::Preferences=/dev/null
    -o Dir::Etc::PreferencesParts="$scratch/etc/preferences" -o Dir::Cache::archives=archives
    -o Acquire::Languages=none -o Acquire::Retries=3 -o APT::Update::Error-Mode=any -o APT::Install-Recommends=false)
  [ -z "${!variable:-}" ] || apt+=(-o Acquire::Check-Valid-Until=false) # a snapshot is old
  "${apt[@]}" update >"$log" 2>&1 </dev/null || unavailable "$name" "$variable" "the archive cannot be read"
  "${apt[@]}" -y --download-only install "$package" >"$log" 2>&1 </dev/null || unavailable "$name" "$variable" "the archive does not give it"

  mkdir -p "$(dirname "$root")"
  rm -rf "$root.partial"
  mkdir "$root.partial"
  for deb in "$scratch"/cache/archives/*.deb; do
    # shellcheck disable=SC2254 # a pattern
    case $(basename "$deb") in $without) continue ;; esac
    dpkg-deb --fsys-tarfile "$deb" | tar -x -C "$root.partial" --exclude=./usr/bin --exclude=./usr/share/doc --exclude=./usr/share/man
  done
  loader=$(cd "$root.partial" && echo usr/lib/*-linux-gnu*/ld-linux*.so.*)
}

# through_loader replaces a program in $root.partial with a script that starts it with the C library that it was built
# for.
through_loader() {
  local program=$1 up
  up=$(dirname "$program" | sed 's:[^/]*:..:g')
  mv "$root.partial/$program" "$root.partial/$program.elf"
  cat >"$root.partial/$program" <<EOF
#!/bin/sh
here=\$(dirname "\$(readlink -f "\$0")")
root=\$(cd "\$here/$up" && pwd)
exec "\$root/$loader" --library-path "\$root/${loader%/*}" --argv0 "\$0" "\$here/$(basename "$program").elf" "\$@"
EOF
  chmod +x "$root.partial/$program"
}

# complete ends the unpacking of $root. The file is written last, so that an interrupted unpacking is not treated as
# complete.
complete() {
  printf '%s\n' "$1" >"$root.partial/.complete"
  rm -rf "$root"
  mv "$root.partial" "$root"
}

# no_archive reports whether a default server has to be skipped because apt knows no archive of Debian, as on Ubuntu.
no_archive() {
  [ "$1" != asked ] && [ -z "${2:-}" ] &&
    ! apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 2>/dev/null | grep -qE '/debian/?$'
}

# mysql_root unpacks MySQL's server, which Debian stable does not have.
mysql_root() {
  local root=${REDRIVE_MYSQL:-$cache/mysql} loader
  [ ! -e "$root/.complete" ] || return 0
  if no_archive "$mysql" "${REDRIVE_MYSQL_ARCHIVE:-}"; then
    say "without MySQL: apt knows no archive of Debian here. OPTIONAL_SERVICES=mysql skips its tests"
    return 0
  fi
  unpack MySQL REDRIVE_MYSQL_ARCHIVE mysql-server-core '@(perl|libperl)*' # only needed by scripts of the package
  cat >"$root.partial/mysqld" <<EOF
#!/bin/sh
# Starts the server with the C library that it was built for.
root=\$(dirname "\$(readlink -f "\$0")")
exec "\$root/$loader" --library-path "\$root/${loader%/*}" "\$root/usr/sbin/mysqld" "\$@" --basedir="\$root/usr"
EOF
  chmod +x "$root.partial/mysqld"
  "$root.partial/mysqld" --version >"$log" 2>&1 || unavailable MySQL REDRIVE_MYSQL_ARCHIVE "its server does not run on this machine"
  complete "$(sed 's/.* Ver /MySQL /' "$log")"
}

# rabbitmq4_root unpacks RabbitMQ 4 with its Erlang, in addition to the RabbitMQ of Debian stable.
rabbitmq4_root() {
  local root=${REDRIVE_RABBITMQ4:-$cache/rabbitmq4} loader program erts
  [ ! -e "$root/.complete" ] || return 0
  if no_archive "$rabbitmq4" "${REDRIVE_RABBITMQ4_ARCHIVE:-}"; then
    say "without RabbitMQ 4: apt knows no archive of Debian here. OPTIONAL_SERVICES=rabbitmq4 skips its tests"
    return 0
  fi
  unpack "RabbitMQ 4" REDRIVE_RABBITMQ4_ARCHIVE rabbitmq-server \
    '@(systemd|libsystemd-shared|openssl_|openssl-provider|passwd|procps|adduser|debconf|rabbitmqadmin)*'
  for program in "$root.partial"/usr/lib/erlang/erts-*/bin/*; do
    if [ "$(head -c 4 "$program" | tail -c 3)" = ELF ]; then through_loader "${program#"$root.partial/"}"; fi
  done
  erts=$(cd "$root.partial" && echo usr/lib/erlang/erts-*/bin)
  mkdir "$root.partial/bin" # first in the PATH of RabbitMQ's scripts
  for program in erl escript epmd; do
    cat >"$root.partial/bin/$program" <<EOF
#!/bin/sh
root=\$(dirname "\$(dirname "\$(readlink -f "\$0")")")
export ROOTDIR="\$root/usr/lib/erlang" BINDIR="\$root/$erts" EMU=beam PROGNAME=$program ESCRIPT_EMULATOR="\$root/bin/erl"
exec "\$BINDIR/$(if [ $program = erl ]; then echo erlexec; else echo $program; fi)" "\$@"
EOF
    chmod +x "$root.partial/bin/$program"
  done
  "$root.partial/bin/erl" -noshell -eval 'crypto:start(), io:format("~s~n", [erlang:system_info(otp_release)]), halt().' >"$log" 2>&1 ||
    unavailable "RabbitMQ 4" REDRIVE_RABBITMQ4_ARCHIVE "its Erlang does not run on this machine"
  complete "$(basename "$root.partial"/usr/lib/rabbitmq/lib/rabbitmq_server-*) on Erlang $(cat "$log")"
}

# schemathesis_venv installs the fuzzer for the API's document in a separate Python environment.
schemathesis_venv() {
  local version=4.32.5 root=$cache/schemathesis
  if [ "$(cat "$root/.complete" 2>/dev/null)" = "$version" ]; then return 0; fi
  python3 -c 'import venv, ensurepip' 2>/dev/null || packages python3-venv
  say "fetching schemathesis $version"
  rm -rf "$root"
  mkdir -p "$cache"
  quietly python3 -m venv "$root"
  quietly "$root/bin/pip" install --disable-pip-version-check "schemathesis==$version"
  printf '%s\n' "$version" >"$root/.complete"
}

mysql=
rabbitmq4=
schemathesis=
[ $# -gt 0 ] || { mysql=default && rabbitmq4=default && set -- rabbitmq postgres mariadb promtool systemd kafka schemathesis; }
debian=()
kafka=
for what in "$@"; do
  case $what in
    rabbitmq) debian+=(rabbitmq-server) ;;
    postgres | postgresql) debian+=(postgresql pgbouncer) ;;
    pgbouncer) debian+=(pgbouncer) ;;
    mariadb) debian+=(mariadb-server) ;;
    mysql) mysql=asked ;;
    rabbitmq4) rabbitmq4=asked ;;
    promtool) debian+=(prometheus) ;;
    systemd) command -v systemd-analyze >/dev/null || debian+=(systemd) ;;
    chromium) debian+=(chromium) ;;
    build) debian+=(make gcc libc6-dev git) ;;
    kafka) kafka=1 ;;
    schemathesis) schemathesis=1 ;;
    *) die "unknown: $what (known: rabbitmq rabbitmq4 postgres pgbouncer mariadb mysql kafka promtool systemd schemathesis chromium build)" ;;
  esac
done
[ ${#debian[@]} -eq 0 ] || packages "${debian[@]}"
[ -z "$kafka" ] || kafka_jars
[ -z "$schemathesis" ] || schemathesis_venv
# These are last, because they may be the only ones that are missing; both are attempted.
missing=0
for root in ${mysql:+mysql_root} ${rabbitmq4:+rabbitmq4_root}; do
  set +e # even where it would have no effect in a || list
  (
    trap 'rm -rf ${scratch:+"$scratch"}' EXIT
    set -e
    "$root"
  )
  status=$?
  set -e
  case $status in
    0) ;;
    75) missing=75 ;;
    *) exit "$status" ;;
  esac
done
exit $missing
