{{- define "penstock.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- /* What a release of Kubernetes must have. Extended resources: admission policies and claims of group version
       v1, 1.34, which is the chart's own constraint. */ -}}
{{- define "penstock.refusals" -}}
{{- if and (ne .Values.way "plugin") (not (semverCompare ">=1.36.0-0" .Capabilities.KubeVersion.Version)) }}
{{- printf "way: %s needs Kubernetes 1.36, and this is %s: before it a device cannot be shared by claims (DRAConsumableCapacity is alpha and off). Use --set way=plugin, or upgrade control plane and kubelets." .Values.way .Capabilities.KubeVersion.Version | fail }}
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
