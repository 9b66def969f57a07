{{/* The base job template of Prefect's work pool: a flow's pod. What stands in quoted double braces is for Prefect. */}}
{{- define "tributary.flowJob" -}}
variables:
  type: object
  # a flow run that names a command, an environment or anything else is refused
  additionalProperties: false
  properties:
    name: {type: string, title: Name}
    labels: {type: object, title: Labels, additionalProperties: {type: string}, default: {}}
job_configuration:
  name: {{ `"{{ name }}"` }}
  env: {{ `"{{ env }}"` }}
  labels: {{ `"{{ labels }}"` }}
  command: {{ `"{{ command }}"` }}
  namespace: {{ .Release.Namespace }}
  # the first pod of a node pulls the image
  pod_watch_timeout_seconds: 900
  job_manifest:
    apiVersion: batch/v1
    kind: Job
    metadata:
      namespace: {{ .Release.Namespace }}
      generateName: {{ `"{{ name }}-"` }}
      labels: {{ `"{{ labels }}"` }}
    spec:
      # Prefect starts an evicted flow again; the run goes on where it was
      backoffLimit: 0
      ttlSecondsAfterFinished: 3600
      template:
        metadata:
          labels: {{- include "tributary.labels" (list . "flow") | nindent 12 }}
        spec:
          # these two are Prefect's wish; Kubernetes ignores them here
          parallelism: 1
          completions: 1
          restartPolicy: Never
          hostname: {{ .Release.Name }}-tributary-0
          terminationGracePeriodSeconds: 60
          {{- include "tributary.podSettings" . | nindent 10 }}
          {{- include "tributary.placed" .Values.prefectWorker.flows | nindent 10 }}
          containers:
            - name: prefect-job
              image: {{ include "tributary.image" . | quote }}
              imagePullPolicy: {{ .Values.image.pullPolicy }}
              # not the image's entry point, which would start a stack
              command: [tini, -g, --]
              args: {{ `"{{ command }}"` }}
              env:
                - {name: TRIBUTARY_STACK_ELSEWHERE, value: "1"}
                - {name: PREFECT_FLOWS_HEARTBEAT_FREQUENCY, value: "30"}
                - {name: PREFECT_SERVER_ALLOW_EPHEMERAL_MODE, value: "false"}
                {{- include "tributary.env" . | nindent 16 }}
              envFrom:
                - secretRef: {name: {{ include "tributary.secret" . }}}
              securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}
              resources: {{- include "tributary.resources" .Values.prefectWorker.flows | nindent 16 }}
              volumeMounts:
                - {name: home, mountPath: /var/lib/tributary}
          volumes:
            - name: home
              persistentVolumeClaim: {claimName: {{ .Release.Name }}-tributary}
{{- end }}
