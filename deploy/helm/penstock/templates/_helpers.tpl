{{- define "penstock.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
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
{{- list (dir $paths.state) (dir $paths.data) (dir $paths.cdi) $paths.kubelet | uniq | toJson }}
{{- end }}
