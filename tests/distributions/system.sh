# Functions that make the base system of a distribution and run commands in it, for the scripts beside this one. They
# set and use: codename, work (a folder), system (the folder of the system), archive, components, mirror, security.

say() { printf '%s %4d:%02d  %s\n' "$codename" $((SECONDS / 60)) $((SECONDS % 60)) "$*"; }
die() { say "$@" >&2; exit 1; }
skip() { say "skipped: $*"; exit 77; }

# The machine's own mirror of a distribution: the address of its apt sources that ends in /NAME.
mirror_of() {  # NAME DEFAULT
  local own
  # shellcheck disable=SC2016 # apt's own variable
  own=$(apt-get indextargets --format '$(REPO_URI)' 2>/dev/null | grep -m1 -E "^https?://.*/$1/?$" || true)
  own=${own:-$2}
  printf '%s\n' "${own%/}"
}

# Sets where the packages of the distribution come from.
choose_archive() {
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
}

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

# Makes the base system, and mounts what programs in it need.
make_system() {
  local keys=/usr/share/keyrings/debian-archive-keyring.gpg
  [[ $archive == debian ]] || ubuntu_keys
  say "making the base system from $mirror"
  bootstrap "$codename" "$system" "$mirror" --keyring="$keys"
  copy_settings
}
mount_system() {
  mount -t proc proc "$system/proc"
  mount -t sysfs -o ro sysfs "$system/sys"
  mount -t devpts -o newinstance,ptmxmode=0666 devpts "$system/dev/pts"
  mkdir -p "$system/dev/shm" "$system/root/tessera"
  mount -t tmpfs -o mode=1777 tmpfs "$system/dev/shm"
}

# Runs a command in the system; its output must have a line that holds the text.
must_print() {  # TEXT COMMAND...
  local text=$1
  shift
  say "running: $*"
  inside "$@" 2>&1 </dev/null | tee "$work/output" || die "'$*' failed"
  grep -qF -- "$text" "$work/output" || die "'$*' did not print '$text'"
}
