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

say() { printf '%s %4d:%02d  %s\n' "$codename" $((SECONDS / 60)) $((SECONDS % 60)) "$*"; }
die() { say "$@" >&2; exit 1; }
skip() { say "skipped: $*"; exit 77; }

chosen=" ${TESSERA_DISTRIBUTIONS:-bookworm trixie noble} "
chosen=${chosen//,/ }
for name in $chosen; do
  [[ $name =~ ^(bookworm|trixie|noble)$ ]] || die "TESSERA_DISTRIBUTIONS: '$name' is unknown (bookworm, trixie, noble)"
done
[[ $chosen == *" $codename "* ]] || skip "TESSERA_DISTRIBUTIONS is '$TESSERA_DISTRIBUTIONS'"

# The machine's own mirror of a distribution: the address of its apt sources that ends in /NAME.
mirror_of() {  # NAME DEFAULT
  local own
  # shellcheck disable=SC2016 # apt's own variable
  own=$(apt-get indextargets --format '$(REPO_URI)' 2>/dev/null | grep -m1 -E "^https?://.*/$1/?$" || true)
  own=${own:-$2}
  printf '%s\n' "${own%/}"
}

archive=debian components=main
case $codename in
  bookworm | trixie)
    mirror=$(mirror_of debian http://deb.debian.org/debian)
    security="$(mirror_of debian-security http://deb.debian.org/debian-security) $codename-security"
    ;;
  noble)
    archive=ubuntu components='main universe'
    mirror=$(mirror_of ubuntu http://archive.ubuntu.com/ubuntu)
    security="$mirror noble-security"
    ;;
  *) die "'$codename' is not a known distribution (bookworm, trixie, noble)" ;;
esac

# Runs debootstrap CODENAME FOLDER MIRROR with its output in a file, and shows the file when it fails.
bootstrap() {  # CODENAME FOLDER MIRROR OPTION...
  local name=$1 folder=$2 from=$3 script=()
  shift 3
  # Releases that are newer than this debootstrap are made as their predecessors.
  [[ -e /usr/share/debootstrap/scripts/$name ]] || script=("/usr/share/debootstrap/scripts/$([[ $name == noble ]] && echo gutsy || echo sid)")
  debootstrap --variant=minbase "$@" "$name" "$folder" "$from" "${script[@]}" >"$work/debootstrap.log" 2>&1 ||
    { tail -n 20 "$work/debootstrap.log"; die "debootstrap could not make the base system of $name"; }
}

# Debian 13 has the package ubuntu-keyring with the keys of Ubuntu's archive, so Debian's keys vouch for Ubuntu's.
ubuntu_keys() {
  local name=usr/share/keyrings/ubuntu-archive-keyring.gpg apt=$work/apt options
  keys=/$name
  [[ ! -e $keys ]] || return 0
  say "getting the keys of Ubuntu's archive from Debian 13"
  mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial"
  printf 'deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] %s trixie main\n' \
    "$(mirror_of debian http://deb.debian.org/debian)" >"$apt/sources.list"
  options=(-q -o "Dir::State=$apt" -o Dir::State::status=/dev/null -o "Dir::Cache=$apt/cache"
    -o "Dir::Etc::SourceList=$apt/sources.list" -o Dir::Etc::SourceParts=- -o APT::Sandbox::User=root)
  (cd "$apt" && apt-get "${options[@]}" update && apt-get "${options[@]}" download ubuntu-keyring &&
    dpkg-deb --extract ./*.deb .) >"$work/keys.log" 2>&1 ||
    { tail -n 20 "$work/keys.log"; die "the keys of Ubuntu's archive could not be installed"; }
  keys=$apt/$name
}

# How this machine reaches its mirrors and PyPI: addresses of proxies, certificates, settings of apt and pip.
copy_settings() {
  local file
  printf 'deb %s\n' "$mirror $codename $components" "$mirror $codename-updates $components" "$security $components" \
    >"$system/etc/apt/sources.list"
  rm -f "$system"/etc/apt/sources.list.d/*
  apt-config dump | grep -E '^Acquire::(https?::|ForceIPv|Check-|Retries)' >"$system/etc/apt/apt.conf.d/90machine" || true
  # The package ca-certificates, when something installs it, writes its file anew from these and its own.
  for file in /usr/local/share/ca-certificates/*.crt /etc/resolv.conf /etc/hosts /etc/ssl/certs/ca-certificates.crt \
    /etc/pip.conf; do
    [[ ! -e $file ]] || { mkdir -p "$system${file%/*}" && cp -L --remove-destination "$file" "$system$file"; }
  done
  for file in "$HOME/.config/pip/pip.conf" "$HOME/.pip/pip.conf"; do
    [[ ! -e $file ]] || { mkdir -p "$system/root/.config/pip" && cp -L "$file" "$system/root/.config/pip/pip.conf"; }
  done
}

# A command in the system, in a copy of the repository, with none of this shell's variables but those of the network.
inside() {
  local name variables=()
  for name in http_proxy https_proxy no_proxy HTTP_PROXY HTTPS_PROXY NO_PROXY SSL_CERT_FILE \
    PIP_CERT PIP_INDEX_URL PIP_EXTRA_INDEX_URL PIP_TRUSTED_HOST PIP_DEFAULT_TIMEOUT; do
    [[ -z ${!name:-} ]] || variables+=("$name=${!name}")
  done
  env -i HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "${variables[@]}" \
    chroot "$system" /bin/bash -c 'cd /root/tessera && exec "$@"' bash "$@"
}

# Runs a command of the README; its output must have a line that holds the text.
readme_command() {  # TEXT COMMAND...
  local text=$1
  shift
  say "running: $*"
  inside "$@" 2>&1 </dev/null | tee "$work/output" || die "'$*' failed"
  grep -qF -- "$text" "$work/output" || die "'$*' did not print '$text'"
}

run_inside() {
  local keys=/usr/share/keyrings/debian-archive-keyring.gpg arguments
  if [[ -e $work/kept ]]; then
    say "continuing with the system that was kept"
  else
    [[ $archive == debian ]] || ubuntu_keys
    say "making the base system from $mirror"
    bootstrap "$codename" "$system" "$mirror" --keyring="$keys"
    copy_settings
  fi
  mount -t proc proc "$system/proc"
  mount -t sysfs -o ro sysfs "$system/sys"
  mount -t devpts -o newinstance,ptmxmode=0666 devpts "$system/dev/pts"
  mkdir -p "$system/dev/shm" "$system/root/tessera"
  mount -t tmpfs -o mode=1777 tmpfs "$system/dev/shm"
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
  read -r -a arguments <<<"${TESSERA_DISTRIBUTIONS_TRAIN-train.steps=20}"
  [[ ${arguments[*]} == no ]] || readme_command 'checkpoint saved: ' ./dev train "${arguments[@]}"
  readme_command '100% tests passed, 0 tests failed' ./dev test
  say 'the commands of the README work'
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
