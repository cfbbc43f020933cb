#!/bin/sh
# run.sh: what Tessera does and how fast, on this machine's GPU of NVIDIA (the page FIRST-GPU-DAY.md beside this file).
#
#   ./run.sh [SECONDS]                  all parts that have not passed yet, what is most valuable first; 420 s by default
#   ./run.sh part NAME [--only TEXT]    one part again, or some of its items, with all that they have found
#   ./run.sh report [FILES] [--to FILE] the page of the results; without FILES, of those here
#
# It needs a shell, tar to unpack it, NVIDIA's driver, and glibc. CUDA's libraries are searched in the usual places and in
# Python's site-packages; another folder with them is added by LD_LIBRARY_PATH. Only commands of the shell itself are used.
here=${0%/*}
[ "$here" != "$0" ] || here=.
here=$(cd "$here" && pwd) || exit 2

die() {
  printf 'error: %s\n' "$1" >&2
  exit 2
}

# add FOLDER NAME...: to the search path of libraries, where it has a file of a library NAME.
libraries=$here/lib
add() {
  folder=$1
  shift
  for name; do
    for file in "$folder/$name".so.*; do
      [ -e "$file" ] || continue
      case :$libraries: in *:"$folder":*) ;; *) libraries=$libraries:$folder ;; esac
      return
    done
  done
}

for folder in /usr/lib/x86_64-linux-gnu /usr/lib64 /usr/local/nvidia/lib64 /usr/lib/wsl/lib /run/opengl-driver/lib \
  /usr/lib/x86_64-linux-gnu/nvidia/current; do
  add "$folder" libcuda libnvidia-ml
done
for folder in "${CUDA_HOME:-/usr/local/cuda}/lib64" /usr/local/cuda*/lib64 /usr/local/cuda*/targets/x86_64-linux/lib /opt/cuda/lib64 \
  /usr/lib/x86_64-linux-gnu /usr/lib64 \
  "${VIRTUAL_ENV:-/none}"/lib/python3*/site-packages/nvidia/*/lib "${CONDA_PREFIX:-/none}"/lib/python3*/site-packages/nvidia/*/lib \
  "${HOME:-/root}"/.local/lib/python3*/site-packages/nvidia/*/lib "${HOME:-/root}"/*/lib/python3*/site-packages/nvidia/*/lib \
  /usr/local/lib/python3*/dist-packages/nvidia/*/lib /usr/local/lib/python3*/site-packages/nvidia/*/lib \
  /usr/lib/python3*/site-packages/nvidia/*/lib /usr/lib/python3/dist-packages/nvidia/*/lib \
  /opt/*/lib/python3*/site-packages/nvidia/*/lib /opt/*/*/lib/python3*/site-packages/nvidia/*/lib; do
  add "$folder" libcublasLt libcudnn libnccl libnvrtc
done
LD_LIBRARY_PATH=$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export LD_LIBRARY_PATH

# Large files are packed more tightly than the archive; each is unpacked once, also where several start at once.
for file in "$here"/bin/*.zst "$here"/lib/*.zst "$here"/lib/tessera/plugins/*.zst; do
  [ -e "$file" ] || continue
  said=$("$here/bin/unpack" "$file" 2>&1) || [ ! -e "$file" ] || die "a file of the pack cannot be unpacked: $said"
done

# Whether the program starts at all says most of what can be wrong with the system, or with the archive.
program=$here/bin/tessera-first-day
read -r glibc <"$here/GLIBC" || die "$here/GLIBC: this file of the pack is missing; unpack the archive again"
[ -x "$program" ] || die "$program: this file of the pack is missing; unpack the archive again"
[ -e /lib64/ld-linux-x86-64.so.2 ] ||
  die "this system has no glibc of x86-64 (expected glibc $glibc or later: /lib64/ld-linux-x86-64.so.2); use a container of Debian 12 or later"
said=$("$program" --version 2>&1) || case $said in
  *GLIBC_*) die "the system's glibc is too old (expected $glibc or later): $said" ;;
  *GLIBCXX_*) die "LD_LIBRARY_PATH has another libstdc++ before the pack's: $said" ;;
  *) die "the program does not start: $said; unpack the archive again, and if that does not help, copy it again" ;;
esac

case ${1:-} in
  -h | --help)
    printf '%s\n' 'usage: ./run.sh [SECONDS] [--results FILE]' \
      '       ./run.sh part NAME [--only TEXT] [SECONDS] [--results FILE]' '       ./run.sh report [FILES] [--to FILE]'
    exit 0
    ;;
  part)
    exec "$program" "$@"
    ;;
  report)
    shift
    case ${1:-} in
      '' | --*) exec "$program" report "$here/results/results.jsonl" "$@" ;;
      *) exec "$program" report "$@" ;;
    esac
    ;;
  *)
    exec "$program" run "$@"
    ;;
esac
