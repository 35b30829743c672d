#!/bin/sh
# What makes the image, wherever: the Containerfile runs this, and so do the tests, on a root of
# Debian's packages, where no registry can be reached.
#
#   build.sh wheels SOURCE WHEELS [PIP OPTION...]   where there is a compiler: all that is installed
#   build.sh install WHEELS                         in the image's root, which needs no network
#
# Releases are those that constraints.txt names: the ones that the tests have seen.
set -eu

wheels() {
  source=$1 wheels=$2
  shift 2
  mkdir -p "$wheels"
  python3 -m pip wheel "$@" --no-deps --wheel-dir "$wheels" "$source"
  # What is there already is not asked for again.
  python3 -m pip wheel --quiet --constraint "$source/constraints.txt" --find-links "$wheels" \
    --prefer-binary --wheel-dir "$wheels" 'penstock[kube]' pip
}

install() {
  # pip runs from its own wheel and does not stay in the image.
  python3 -m venv --without-pip /opt/penstock
  pip=$(echo "$1"/pip-*.whl)
  # Compiled here: the image's file system is read-only where it runs.
  PYTHONPATH=$pip /opt/penstock/bin/python -m pip install --quiet --no-index --no-cache-dir \
    --disable-pip-version-check --root-user-action ignore --compile --find-links "$1" \
    'penstock[kube]'
  # Not asked for by anything that runs: headers, type stubs, other projects' tests.
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
