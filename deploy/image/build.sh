#!/bin/sh
# Builds the contents of the image. The Containerfile runs this script, and so do tests on machines
# that reach no registry, in a root file system made of Debian packages.
#
#   build.sh wheels SOURCE WHEELS [PIP OPTION...]   on a machine with a compiler: builds all wheels
#   build.sh install WHEELS                         in the image's root: installs them without a network
#
# Dependencies have the releases in constraints.txt, with which the tests run.
set -eu

wheels() {
  source=$1 wheels=$2
  shift 2
  mkdir -p "$wheels"
  python3 -m pip wheel "$@" --no-deps --wheel-dir "$wheels" "$source"
  # --find-links reuses the wheel that was just built.
  python3 -m pip wheel --quiet --constraint "$source/constraints.txt" --find-links "$wheels" \
    --prefer-binary --wheel-dir "$wheels" 'penstock[kube]' pip
}

install() {
  # pip runs from its own wheel and does not stay in the image.
  python3 -m venv --without-pip /opt/penstock
  pip=$(echo "$1"/pip-*.whl)
  # Byte code is compiled here, because containers run with a read-only file system.
  PYTHONPATH=$pip /opt/penstock/bin/python -m pip install --quiet --no-index --no-cache-dir \
    --disable-pip-version-check --root-user-action ignore --compile --find-links "$1" \
    'penstock[kube]'
  # Headers and type stubs are not needed at run time.
  packages=$(/opt/penstock/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  find "$packages" -name '*.pyi' -delete
  find "$packages" -depth -type d -name include -exec rm -rf {} +
  /opt/penstock/bin/penstock --version
}

case "${1:-}" in
  wheels) shift; wheels "$@" ;;
  install) shift; install "$@" ;;
  *) sed -n '2,8s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
esac
