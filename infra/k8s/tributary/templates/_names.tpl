{{/* Of what a part of the release makes: `include "tributary.labels" (list . "stack")`. */}}
{{- define "tributary.labels" -}}
{{- $chart := index . 0 -}}
app.kubernetes.io/name: {{ $chart.Chart.Name }}
app.kubernetes.io/instance: {{ $chart.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{- define "tributary.secret" -}}
{{ .Values.existingSecret | default (printf "%s-tributary" .Release.Name) }}
{{- end }}

{{- define "tributary.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag }}
{{- end }}

{{/* What every pod of ours has in its environment besides the Secret. */}}
{{- define "tributary.env" -}}
{{- with .Values.s3.endpoint }}
- {name: AWS_ENDPOINT_URL, value: {{ . | quote }}}
{{- end }}
- {name: AWS_DEFAULT_REGION, value: {{ .Values.s3.region | quote }}}
{{- range $name, $value := .Values.env }}
- {name: {{ $name }}, value: {{ $value | quote }}}
{{- end }}
{{- end }}

{{/* What Kubernetes is to know of every pod of ours. A volume's files keep their modes: only the key's owner may read it. */}}
{{- define "tributary.podSettings" -}}
automountServiceAccountToken: false
securityContext:
  runAsNonRoot: true
  runAsUser: 1000
  runAsGroup: 1000
  fsGroup: 1000
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {{- toYaml .Values.seccompProfile | nindent 4 }}
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Where a pod runs and what it gets: `include "tributary.placed" VALUES`. */}}
{{- define "tributary.placed" -}}
{{- with .nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "tributary.resources" -}}
{{- $resources := .resources | default dict -}}
{{- $limits := dict -}}
{{- if .gpus }}{{ $limits = dict "nvidia.com/gpu" .gpus }}{{ end -}}
requests: {{- toYaml ($resources.requests | default dict) | nindent 2 }}
limits: {{- toYaml (merge $limits ($resources.limits | default dict)) | nindent 2 }}
{{- end }}
