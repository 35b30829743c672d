#!/bin/sh
# Writes what is generated below deploy/, or below another folder of the same form: the chart's copies
# of what lies elsewhere, and the kustomize bases, which are the chart with its own values.
#
#   HELM=helm deploy/render.sh TO
set -eu
here=$(dirname "$0") to=$1 chart=$1/helm/penstock
helm=${HELM:-helm}
command -v "$helm" > /dev/null || {
  echo "render.sh: there is no $helm; install helm 3, or name one: HELM=/path/to/helm" >&2
  exit 2
}

copies() {
  mkdir -p "$chart/files/crds"
  cp "$here/prometheus/rules.yaml" "$here"/kube/*.yaml "$chart/files/"
  for crd in "$here"/crds/*.yaml; do
    [ ! -e "$crd" ] || cp "$crd" "$chart/files/crds/"
  done
}

# The release of Kubernetes is what the chart is rendered for where no cluster is asked.
render() {
  folder=$to/kustomize/$1
  shift
  mkdir -p "$folder"
  {
    echo "# Written by make chart from deploy/helm/penstock: change it there, or by a patch."
    "$helm" template penstock "$chart" --namespace penstock-system --kube-version 1.36.0 "$@"
  } > "$folder/.penstock.yaml"
  mv "$folder/.penstock.yaml" "$folder/penstock.yaml"
}

copies
mkdir -p "$to/kustomize/uninstall"
cp "$here/kustomize/base/namespace.yaml" "$to/kustomize/uninstall/"
render base --no-hooks
render uninstall --show-only templates/uninstall.yaml --set uninstall.force=true
