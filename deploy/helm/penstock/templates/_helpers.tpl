{{- define "penstock.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- /* What a release of Kubernetes must have. Extended resources: admission policies and claims of group version
       v1, 1.34, which is the chart's own constraint. */ -}}
{{- define "penstock.refusals" -}}
{{- if and (ne .Values.way "plugin") (not (semverCompare ">=1.36.0-0" .Capabilities.KubeVersion.Version)) }}
{{- printf "way: %s needs Kubernetes 1.36, and this is %s: before it a device cannot be shared by claims (DRAConsumableCapacity is alpha and off). Use --set way=plugin, or upgrade control plane and kubelets." .Values.way .Capabilities.KubeVersion.Version | fail }}
{{- end }}
{{- /* An upgrade must not take the agents away from under the shares of a cluster without the label. */ -}}
{{- $nodes := dig "items" list (lookup "v1" "Node" "" "") }}
{{- if and .Release.IsUpgrade $nodes (eq (include "penstock.agentNodes" .) (toYaml (dict "nvidia.com/gpu.present" "true"))) }}
{{- $labelled := list }}
{{- range $node := $nodes }}
{{- if eq (dig "metadata" "labels" "nvidia.com/gpu.present" "" $node) "true" }}{{ $labelled = append $labelled $node }}{{ end }}
{{- end }}
{{- if not $labelled }}
{{- fail "no node has the label nvidia.com/gpu.present=true, so no agent would run: use --set agent.onlyGpuNodes=false, or name the nodes by agent.nodeSelector" }}
{{- end }}
{{- end }}
{{- if and .Values.monitoring.podMonitor (not .Values.agent.metricsPort) }}
{{- fail "monitoring.podMonitor needs agent.metricsPort: 0 switches the agents' figures off" }}
{{- end }}
{{- end }}

{{- /* Of every object. */ -}}
{{- define "penstock.labels" -}}
app.kubernetes.io/name: penstock
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- end }}

{{- /* What selects the Pods of a component: (list . "agent") */ -}}
{{- define "penstock.selector" -}}
app.kubernetes.io/name: penstock
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{- /* Of a Pod: (list . "agent") */ -}}
{{- define "penstock.podLabels" -}}
{{ include "penstock.selector" . }}
app.kubernetes.io/version: {{ (index . 0).Chart.AppVersion | quote }}
{{- end }}

{{- /* Labels of a component's Pods, with the operator's: (list . "agent" .Values.agent). Ours come last: what
       selects the Pods is not to be changed. */ -}}
{{- define "penstock.allLabels" -}}
{{- $ours := include "penstock.podLabels" . | fromYaml }}
{{- merge $ours (deepCopy (index . 2).podLabels) | toYaml }}
{{- end }}

{{- /* Where a component's Pods may run: (list . "control" .Values.control) */ -}}
{{- define "penstock.where" -}}
{{- $of := index . 2 }}
{{- with $of.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $of.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $of.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- /* Nodes for agents: those that the operator names, else those that are known to have a GPU. */ -}}
{{- define "penstock.agentNodes" -}}
{{- $agent := .Values.agent }}
{{- if $agent.nodeSelector }}
{{- toYaml $agent.nodeSelector }}
{{- else if and $agent.onlyGpuNodes (not $agent.simulate) }}
{{- toYaml (dict "nvidia.com/gpu.present" "true") }}
{{- else }}
{{- "{}" }}
{{- end }}
{{- end }}

{{- /* Of agents that serve in one way: (list . "plugin"). With both ways a node is served by claims, unless somebody
       labelled it; that is asked for beside whatever the operator asks for. */ -}}
{{- define "penstock.agentAffinity" -}}
{{- $values := (index . 0).Values }}
{{- $affinity := deepCopy $values.agent.affinity }}
{{- if eq $values.way "both" }}
{{- $served := dict "key" "penstock.io/way" "operator" (ternary "In" "NotIn" (eq (index . 1) "plugin")) "values" (list "extender") }}
{{- $ofNodes := dig "nodeAffinity" dict $affinity }}
{{- $required := dig "requiredDuringSchedulingIgnoredDuringExecution" dict $ofNodes }}
{{- $terms := list }}
{{- range $term := dig "nodeSelectorTerms" (list dict) $required }}
{{- $terms = append $terms (set (deepCopy $term) "matchExpressions" (append (dig "matchExpressions" list $term) $served)) }}
{{- end }}
{{- $_ := set $ofNodes "requiredDuringSchedulingIgnoredDuringExecution" (dict "nodeSelectorTerms" $terms) }}
{{- $_ := set $affinity "nodeAffinity" $ofNodes }}
{{- end }}
{{- if $affinity }}
{{- toYaml $affinity }}
{{- end }}
{{- end }}

{{- /* Further arguments and variables of a container: .Values.control */ -}}
{{- define "penstock.extraArgs" -}}
{{- range .extraArgs }}
- {{ . | quote }}
{{- end }}
{{- end }}

{{- /* Of a container that needs nothing of the node: what PodSecurity's "restricted" asks for. */ -}}
{{- define "penstock.restricted" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
capabilities: {drop: [ALL]}
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "penstock.imagePull" -}}
{{- with .Values.image.pullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- /* The directories on a node that ours lie in, as JSON; no longer one below another of them. */ -}}
{{- define "penstock.parents" -}}
{{- $paths := .Values.paths }}
{{- list (dir $paths.state) (dir $paths.data) (dir $paths.cdi) $paths.kubelet (dir $paths.devicePlugins) | uniq | toJson }}
{{- end }}

{{- /* Replicas of a component on different nodes, where there are several. */ -}}
{{- define "penstock.apart" -}}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels: {{- include "penstock.selector" . | nindent 8 }}
{{- end }}

{{- /* A drain leaves one of several running: (list . "control" 2) */ -}}
{{- define "penstock.disruption" -}}
{{- $root := index . 0 -}}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ $root.Release.Name }}-{{ index . 1 }}
  labels: {{- include "penstock.labels" $root | nindent 4 }}
spec:
  {{- /* of a single replica a budget would keep drains from ending */}}
  {{ ternary "minAvailable" "maxUnavailable" (gt (int (index . 2)) 1) }}: 1
  selector:
    matchLabels: {{- include "penstock.selector" (list $root (index . 1)) | nindent 6 }}
{{- end }}

{{- /* Of a process of ours, by the name of its port. A busy node is slow and no reason to end one. */ -}}
{{- define "penstock.probes" -}}
startupProbe:
  httpGet: {path: /healthz, port: {{ . }}}
  periodSeconds: 2
  failureThreshold: 60
livenessProbe:
  httpGet: {path: /healthz, port: {{ . }}}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
readinessProbe:
  httpGet: {path: /readyz, port: {{ . }}}
  periodSeconds: 2
  timeoutSeconds: 5
{{- end }}
