{{/* The stack's pod, whoever makes it. What it runs survives the pod in the home's volume, and goes on in the next one. */}}
{{- define "tributary.stack" -}}
{{- $kuberay := .Values.kuberay.enabled -}}
{{- $jobs := .Values.prefectWorker.enabled -}}
metadata:
  labels: {{- include "tributary.labels" (list . "stack") | nindent 4 }}
  annotations:
    # a pod reads its environment once
    checksum/secret: {{ include (print .Template.BasePath "/secret.yaml") . | sha256sum }}
    {{- if $jobs }}
    checksum/flow-job: {{ include "tributary.flowJob" . | sha256sum }}
    {{- end }}
    {{- if $kuberay }}
    # `tributary up` starts Ray's head itself, with the stack's settings
    ray.io/overwrite-container-cmd: "true"
    {{- end }}
spec:
  # a part of the home's identity, also in flows' pods
  hostname: {{ .Release.Name }}-tributary-0
  # a checkpoint of what runs, then the stack's own end
  terminationGracePeriodSeconds: 60
  {{- include "tributary.podSettings" . | nindent 2 }}
  {{- include "tributary.placed" .Values | nindent 2 }}
  containers:
    - name: tributary
      image: {{ include "tributary.image" . | quote }}
      imagePullPolicy: {{ .Values.image.pullPolicy }}
      args: {{- toYaml .Values.command | nindent 8 }}
      env:
        - {name: TRIBUTARY_HOST, value: 0.0.0.0}
        - {name: TRIBUTARY_PORTS, value: "prefect=4200,mlflow=5000,ray_dashboard=8265{{ if $kuberay }},ray_gcs=6379{{ end }}"}
        {{- if or $kuberay $jobs }}
        - name: TRIBUTARY_ADDRESS
          valueFrom: {fieldRef: {fieldPath: status.podIP}}
        {{- end }}
        {{- if $jobs }}
        - {name: TRIBUTARY_JOB_TEMPLATE, value: /etc/tributary/flow-job.json}
        {{- end }}
        {{- include "tributary.env" . | nindent 8 }}
      envFrom:
        - secretRef: {name: {{ include "tributary.secret" . }}}
      ports:
        - {name: prefect, containerPort: 4200}
        - {name: mlflow, containerPort: 5000}
        - {name: dashboard, containerPort: 8265}
        {{- if $kuberay }}
        - {name: gcs-server, containerPort: 6379}
        {{- end }}
      # The entry point restarts parts that end; only a stack that never comes up is for Kubernetes.
      startupProbe:
        exec: {command: [tributary, status]}
        periodSeconds: 10
        timeoutSeconds: 10
        failureThreshold: 60
      readinessProbe:
        exec: {command: [tributary, status]}
        periodSeconds: 30
        timeoutSeconds: 10
      {{- if $kuberay }}
      # in place of KubeRay's, which asks fixed ports by wget
      livenessProbe:
        exec: {command: ["true"]}
      {{- end }}
      securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}
      resources: {{- include "tributary.resources" .Values | nindent 8 }}
      volumeMounts:
        - {name: home, mountPath: /var/lib/tributary}
        - {name: shm, mountPath: /dev/shm}
        {{- if $jobs }}
        - {name: flow-job, mountPath: /etc/tributary, readOnly: true}
        {{- end }}
  volumes:
    - name: home
      persistentVolumeClaim: {claimName: {{ .Release.Name }}-tributary}
    - name: shm
      emptyDir: {medium: Memory, sizeLimit: {{ .Values.sharedMemory }}}
    {{- if $jobs }}
    - name: flow-job
      configMap: {name: {{ .Release.Name }}-tributary-flow-job}
    {{- end }}
{{- end }}
