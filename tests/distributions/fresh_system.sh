#!/usr/bin/env bash
# Makes the base system of a distribution with debootstrap and runs both commands of the README in it: no compiler, no
# CMake, no Python, no certificates are there but what ./dev installs.
#
#   fresh_system.sh CODENAME REPOSITORY BUILD_FOLDER
#
# Settings (environment):
#   TESSERA_DISTRIBUTIONS        code names to run, separated by spaces or commas (default: all); others are skipped
#   TESSERA_DISTRIBUTIONS_TRAIN  arguments of ./dev train (default: train.steps=20; empty: the whole demo; no: it is not
#                                run)
#   TESSERA_DISTRIBUTIONS_TEST   configure: only the packages that ./dev setup names are installed, and CMake configures
#                                the program, the plugins and the tests with them
#   TESSERA_DISTRIBUTIONS_PACKAGES  no: packages are neither made nor installed
#   TESSERA_DISTRIBUTIONS_KEEP   1 keeps the system in BUILD_FOLDER/distributions/CODENAME, and continues with the one that
#                                an earlier run has kept: with its packages, and with its build of what has not changed
# Exit code 77: skipped, with the reason. The steps are printed with the time since the start.
#
# All mounts are made in a mount namespace and all processes run in a process namespace: both end with this script,
# also when it is killed. A folder that a killed run has left is removed by the next one.
set -euo pipefail
export LC_ALL=C
codename=$1 repository=$(realpath "$2")
work=$(realpath -m "$3/distributions/$1")
system=$work/system

here=$(dirname "$(realpath "$0")")
# shellcheck source=tests/distributions/system.sh
source "$here/system.sh"

chosen=" ${TESSERA_DISTRIBUTIONS:-bookworm trixie noble} "
chosen=${chosen//,/ }
for name in $chosen; do
  [[ $name =~ ^(bookworm|trixie|noble)$ ]] || die "TESSERA_DISTRIBUTIONS: '$name' is unknown (bookworm, trixie, noble)"
done
[[ $chosen == *" $codename "* ]] || skip "TESSERA_DISTRIBUTIONS is '$TESSERA_DISTRIBUTIONS'"

choose_archive

run_inside() {
  local arguments
  if [[ -e $work/kept ]]; then
    say "continuing with the system that was kept"
  else
    make_system
  fi
  mount_system
  say "copying what git tracks"
  local file target
  (cd "$system/root/tessera" && find . -path ./build -prune -o ! -type d -printf '%P\n' | sort) |
    comm -23 - <(git -c safe.directory='*' -C "$repository" ls-files | sort) | while IFS= read -r file; do
    rm "$system/root/tessera/$file"
  done
  git -c safe.directory='*' -C "$repository" ls-files -z | while IFS= read -r -d '' file; do
    target=$system/root/tessera/$file
    # What differs is new, whatever its time is: a kept build may be younger than the change.
    cmp -s "$repository/$file" "$target" || { mkdir -p "${target%/*}" && cp -P --preserve=mode "$repository/$file" "$target"; }
  done
  [[ ${TESSERA_DISTRIBUTIONS_KEEP:-0} != 1 ]] || : >"$work/kept"
  if [[ ${TESSERA_DISTRIBUTIONS_TEST:-} == configure ]]; then
    must_print 'dev: installing ' ./dev setup
    must_print 'Build files have been written to' ./dev cmake --preset release -D TESSERA_BUILD_TESTS=ON
    say 'CMake finds everything'
    return
  fi
  read -r -a arguments <<<"${TESSERA_DISTRIBUTIONS_TRAIN-train.steps=20}"
  [[ ${arguments[*]} == no ]] || must_print 'checkpoint saved: ' ./dev train "${arguments[@]}"
  must_print '100% tests passed, 0 tests failed' ./dev test
  say 'the commands of the README work'
  [[ ${TESSERA_DISTRIBUTIONS_PACKAGES:-yes} != no ]] || return 0
  must_print 'libtessera-dev' ./dev package
  bash "$here/packages.sh" "$codename" "$system/root/tessera/build/release/packages" "$work/packages"
}

if [[ ${4:-} == inside ]]; then
  SECONDS=$5
  run_inside
  exit
fi

((EUID == 0)) || skip "debootstrap needs root: sudo ./dev test distributions"
for tool in debootstrap git wget unshare setpriv chroot; do
  command -v "$tool" >/dev/null || skip "needs $tool"
done
unshare --mount --pid --fork --kill-child --mount-proc true || skip 'namespaces of mounts and processes are not allowed here'
wget -q --timeout=20 --tries=2 -O /dev/null "$mirror/dists/$codename/Release" || skip "no mirror at $mirror"

# What a killed run has left.
[[ ${TESSERA_DISTRIBUTIONS_KEEP:-0} == 1 && -e $work/kept ]] || rm -rf --one-file-system "$work"
mkdir -p "$work"
rm -f "$work/null"
{ mknod "$work/null" c 1 3 && : >"$work/null"; } || skip "device files do not work in $work"

child=
finish() {
  local status=$?
  trap '' INT TERM HUP
  [[ -z $child ]] || { kill -KILL "$child" 2>/dev/null || true; wait "$child" 2>/dev/null || true; }
  if [[ ${TESSERA_DISTRIBUTIONS_KEEP:-0} == 1 ]]; then
    say "kept: $system"
  else
    # The last processes may still be ending, and hold files open for a moment.
    rm -rf --one-file-system "$work" || { sleep 2; rm -rf --one-file-system "$work"; }
  fi
  exit "$status"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
# setpriv: unshare ends with this script, and --kill-child: the processes inside end with unshare.
setpriv --pdeathsig KILL unshare --mount --propagation private --pid --fork --kill-child --mount-proc \
  bash "$0" "$codename" "$repository" "$3" inside "$SECONDS" &
child=$!
wait "$child"
