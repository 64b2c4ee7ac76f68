{{- define "sloserve.name" -}}
{{- if contains "sloserve" .Release.Name }}{{ .Release.Name | trunc 50 | trimSuffix "-" }}{{ else }}{{ printf "%s-sloserve" .Release.Name | trunc 50 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "sloserve.selector" -}}
app.kubernetes.io/name: sloserve
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: server
{{- end }}

{{- define "sloserve.labels" -}}
{{ include "sloserve.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "sloserve.apiKeySecret" -}}
{{ .Values.auth.apiKeySecret | default (printf "%s-api-key" (include "sloserve.name" .)) }}
{{- end }}

{{- define "sloserve.adminKeySecret" -}}
{{ .Values.auth.adminKeySecret | default (printf "%s-admin-key" (include "sloserve.name" .)) }}
{{- end }}

{{- define "sloserve.several" -}}
{{- if or .Values.autoscaling.enabled (gt (int .Values.replicas) 1) }}yes{{ end }}
{{- end }}
