{{- define "penstock.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- /* Checks that the release of Kubernetes supports `way`. Extended resources need admission policies and claims
       in version v1, which exist from 1.34 on; the chart's own constraint requires that release. */ -}}
{{- define "penstock.refusals" -}}
{{- if and (ne .Values.way "plugin") (not (semverCompare ">=1.36.0-0" .Capabilities.KubeVersion.Version)) }}
{{- printf "way: %s needs Kubernetes 1.36, and this is %s: before it a device cannot be shared by claims (DRAConsumableCapacity is alpha and off). Use --set way=plugin, or upgrade control plane and kubelets." .Values.way .Capabilities.KubeVersion.Version | fail }}
{{- end }}
{{- /* Keeps an upgrade from removing the agents of running shares in a cluster whose nodes lack the label. */ -}}
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

{{- /* Labels of every object. */ -}}
{{- define "penstock.labels" -}}
app.kubernetes.io/name: penstock
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- end }}

{{- /* Labels that select the Pods of a component: (list . "agent") */ -}}
{{- define "penstock.selector" -}}
app.kubernetes.io/name: penstock
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{- /* Labels of a Pod: (list . "agent") */ -}}
{{- define "penstock.podLabels" -}}
{{ include "penstock.selector" . }}
app.kubernetes.io/version: {{ (index . 0).Chart.AppVersion | quote }}
{{- end }}

{{- /* Labels of a component's Pods, including podLabels: (list . "agent" .Values.agent). The chart's labels come
       last, so that podLabels cannot change the labels that select the Pods. */ -}}
{{- define "penstock.allLabels" -}}
{{- $ours := include "penstock.podLabels" . | fromYaml }}
{{- merge $ours (deepCopy (index . 2).podLabels) | toYaml }}
{{- end }}

{{- /* Node selector, tolerations and affinity of a component's Pods: (list . "control" .Values.control) */ -}}
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

{{- /* The nodes for agents: those that agent.nodeSelector selects, or else those that are known to have a GPU. */ -}}
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

{{- /* The affinity of the agents of one allocation mode: (list . "plugin"). With way: both, a node serves claims
       unless it is labelled otherwise; this condition is added to the affinity in the values. */ -}}
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

{{- /* Extra arguments and environment variables of a container: .Values.control */ -}}
{{- define "penstock.extraArgs" -}}
{{- range .extraArgs }}
- {{ . | quote }}
{{- end }}
{{- end }}

{{- /* The security context of a container that needs nothing from the node, as PodSecurity's "restricted"
       requires. */ -}}
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

{{- /* The directories on a node in which Penstock creates directories or files, as JSON, without duplicates. */ -}}
{{- define "penstock.parents" -}}
{{- $paths := .Values.paths }}
{{- list (dir $paths.state) (dir $paths.data) (dir $paths.cdi) $paths.kubelet (dir $paths.devicePlugins) | uniq | toJson }}
{{- end }}

{{- /* Places the replicas of a component on different nodes if there are several nodes. */ -}}
{{- define "penstock.apart" -}}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels: {{- include "penstock.selector" . | nindent 8 }}
{{- end }}

{{- /* A PodDisruptionBudget, so that a drain leaves one of several replicas running: (list . "control" 2) */ -}}
{{- define "penstock.disruption" -}}
{{- $root := index . 0 -}}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ $root.Release.Name }}-{{ index . 1 }}
  labels: {{- include "penstock.labels" $root | nindent 4 }}
spec:
  {{- /* with a single replica, a budget would keep drains from completing */}}
  {{ ternary "minAvailable" "maxUnavailable" (gt (int (index . 2)) 1) }}: 1
  selector:
    matchLabels: {{- include "penstock.selector" (list $root (index . 1)) | nindent 6 }}
{{- end }}

{{- /* The probes of one of Penstock's processes, by the name of its port. The limits are generous, because a slow,
       busy node is no reason to end a process. */ -}}
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
