#!/usr/bin/env bash
# Installs the packages of ./dev package into the base system of their distribution, where nothing else is, and uses
# them: a run on two ranks, text from its checkpoint, manual page and completions, a plugin built with libtessera-dev.
#
#   packages.sh CODENAME FOLDER_OF_PACKAGES WORK_FOLDER
#
# As root, in namespaces of mounts and processes: unshare --mount --pid --fork --kill-child --mount-proc packages.sh ...
set -euo pipefail
export LC_ALL=C
codename=$1 packages=$(realpath "$2") work=$(realpath -m "$3")
system=$work/system
here=$(dirname "$(realpath "$0")")
# shellcheck source=tests/distributions/system.sh
source "$here/system.sh"
choose_archive

if [[ ${TESSERA_DISTRIBUTIONS_KEEP:-0} != 1 || ! -e $work/made ]]; then
  rm -rf --one-file-system "$work"
  mkdir -p "$work"
  make_system
  tar -C "$system" --one-file-system -cf "$work/base.tar" .
  : >"$work/made"
fi
if command -v buildah >/dev/null; then
  "$here/container.sh" "$codename" "$packages" "$work/base.tar" "$work/container"
else
  say 'no buildah: no image is built'
fi
mount_system
inside bash -c 'apt-get -q remove -y tessera || true' >/dev/null 2>&1  # of a run before
cp "$packages"/*.deb "$system/root/tessera/"
must_print '' apt-get -q update
install='export DEBIAN_FRONTEND=noninteractive; apt-get -q install -y --no-install-recommends'
must_print 'Setting up tessera ' bash -c "$install ./tessera_*.deb"
for _ in 1 2 3 4; do cat /usr/share/common-licenses/GPL-3; done >"$system/root/tessera/text.txt"
cp "$system"/usr/share/tessera/configs/fully_sharded.toml "$system/root/tessera/"
must_print 'usable' tessera plugin list
must_print 'checkpoint saved: ' tessera train fully_sharded.toml 'data.text=[text.txt]' \
  train.steps=20 log.metrics= checkpoint.folder=run
must_print 'The' tessera generate run/step-00000020 --prompt 'The ' --tokens 20
for file in usr/share/man/man1/tessera.1.gz usr/share/bash-completion/completions/tessera; do
  [[ -s $system/$file ]] || die "the package has no $file"
done
must_print 'Setting up tessera-plugin-mpi' bash -c "$install ./tessera-plugin-mpi_*.deb"
must_print 'mpi' tessera plugin list
must_print 'Setting up tessera-plugin-ucx' bash -c "$install ./tessera-plugin-ucx_*.deb"
must_print 'ucx' tessera plugin list
must_print 'Setting up libtessera-dev' bash -c "$install ./libtessera-dev_*.deb"
if [[ $codename != bookworm ]]; then  # its CMake is too old for modules
  must_print '' bash -c "$install cmake ninja-build"
  must_print 'Mine' tessera plugin new Mine
  must_print '' cmake -G Ninja -S Mine -B built -DCMAKE_CXX_COMPILER=clang++-19
  must_print 'Mine.so' cmake --build built
  must_print 'checks passed' tessera plugin check built/Mine.so
fi
must_print 'Removing tessera ' apt-get -q remove -y tessera
compgen -G "$system/usr/lib/libtessera.so*" >/dev/null && die 'removing the package leaves its library'
say 'the packages work'
