#!/usr/bin/env bash
# Downloads the files of other projects that the dashboard embeds, from the npm registry into static/vendor, and checks them against
# vendor.sum, which pins their contents. It needs npm, and is only needed to change a version.
#
#   dlq/dlqhttp/internal/dashboard/vendor.sh           fetch, check against vendor.sum
#   dlq/dlqhttp/internal/dashboard/vendor.sh -update   fetch, write a new vendor.sum (after changing a version below)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

# package@version, the file in it, its name here
files=(
  "htmx.org@4.0.1        dist/htmx.min.js        htmx.min.js"
  "htmx.org@4.0.1        LICENSE                 htmx.LICENSE"
  "@picocss/pico@2.1.1   css/pico.min.css        pico.min.css"
  "@picocss/pico@2.1.1   LICENSE.md              pico.LICENSE"
  "uplot@1.6.32          dist/uPlot.iife.min.js  uplot.min.js"
  "uplot@1.6.32          dist/uPlot.min.css      uplot.min.css"
  "uplot@1.6.32          LICENSE                 uplot.LICENSE"
)

tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
mkdir -p "$tmp/vendor"
for line in "${files[@]}"; do
  read -r package file name <<<"$line"
  dir=$tmp/${package//[\/@]/_}
  if [ ! -d "$dir" ]; then
    mkdir "$dir"
    tar -xzf "$tmp/$(cd "$tmp" && npm pack --silent "$package")" -C "$dir"
  fi
  cp "$dir/package/$file" "$tmp/vendor/$name"
  chmod 644 "$tmp/vendor/$name"
done
(cd "$tmp/vendor" && sha256sum -- *) >"$tmp/vendor.sum"
if [ "${1:-}" = -update ]; then
  cp "$tmp/vendor.sum" vendor.sum
elif ! diff vendor.sum "$tmp/vendor.sum"; then
  echo "vendor.sh: the files in the registry differ from vendor.sum" >&2
  exit 1
fi
rm -rf static/vendor
cp -r "$tmp/vendor" static/vendor
