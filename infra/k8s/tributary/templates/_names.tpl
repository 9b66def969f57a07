{{- define "tributary.labels" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "tributary.secret" -}}
{{ .Values.existingSecret | default (printf "%s-tributary" .Release.Name) }}
{{- end }}
