#!/usr/bin/env bash
# Runs tools/demo.sh and tools/test.sh in a minimal Debian 12 that holds the committed files and
# nothing else, so that what a build machine happens to have hides nothing. Run as root, before
# every release. Usage: [CCACHE_DIR=DIR] tools/fresh_machine.sh [FOLDER]
#   FOLDER      where Debian is installed; not there yet. Default: a temporary folder
#   CCACHE_DIR  a compiler cache that the builds may use
# The folder goes when both commands pass, and stays for a look when one fails.
set -euo pipefail
cd "$(dirname "$0")/.."
source=$PWD

fail() { echo "triphase: error: tools/fresh_machine.sh $*" >&2; exit 5; }
if [ $# -gt 1 ]; then
  echo "usage: [CCACHE_DIR=DIR] tools/fresh_machine.sh [FOLDER]" >&2
  exit 2
fi
[ "$(id -u)" -eq 0 ] || fail "needs root, for debootstrap and chroot"
command -v debootstrap >/dev/null || fail "needs debootstrap: apt-get install debootstrap"
[ $# -eq 0 ] || [ ! -e "$1" ] || fail "wants a folder that is not there yet, $1 is"
[ -z "${CCACHE_DIR:-}" ] || [ -d "$CCACHE_DIR" ] || fail "finds no folder CCACHE_DIR=$CCACHE_DIR"
[ -z "$(git status --porcelain)" ] || echo "What is not committed is not tested." >&2

root=$(realpath -m "${1:-$(mktemp -d)}")
mkdir -p "$root"
chmod 755 "$root"
# The mirror may be reachable through the host's proxy alone; what apt says of one goes along.
environment=(HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin)
for name in http_proxy https_proxy no_proxy; do
  [ -z "${!name:-}" ] || environment+=("$name=${!name}")
done

# In a namespace of their own, mounts end with the command.
inside() {
  # shellcheck disable=SC2016  # expanded inside of the namespace
  unshare --mount bash -euc '
    root=$1
    shift
    mount -t proc proc "$root/proc"
    mount --rbind /dev "$root/dev"
    if [ -n "${CCACHE_DIR:-}" ]; then
      mkdir -p "$root/ccache"
      mount --bind "$CCACHE_DIR" "$root/ccache"
    fi
    exec chroot "$root" env -i "$@"' - "$root" "${environment[@]}" "$@"
}

step() { echo; echo "== $* ($(date +%H:%M:%S))"; }

step "a minimal Debian 12 in $root"
debootstrap --variant=minbase bookworm "$root" >"$root.log" 2>&1 || {
  tail -n 5 "$root.log" >&2
  fail "could not install Debian; $root.log says why"
}
rm "$root.log"
cp /etc/resolv.conf "$root/etc/resolv.conf"
apt-config dump Acquire | grep -i proxy >"$root/etc/apt/apt.conf.d/90host" || true
# The same path inside, so that the compiler cache knows the files.
git clone --quiet --no-hardlinks "file://$source" "$root$source"
# The cache knows a compilation by its language too.
[ -z "${CCACHE_DIR:-}" ] || environment+=(CCACHE_DIR=/ccache "LANG=${LANG:-}")

for command in tools/demo.sh tools/test.sh; do
  step "$command"
  inside "$source/$command" || {
    echo "triphase: error: $command fails on a fresh machine; to look: chroot $root" >&2
    exit 1
  }
done
rm -rf --one-file-system "$root"
step "both commands pass on a fresh machine"
