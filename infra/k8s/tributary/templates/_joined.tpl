{{/* A host that joins the stack: `include "tributary.joined" (list . GROUP)`, with a group of `kuberay.workers`. */}}
{{- define "tributary.joined" -}}
{{- $chart := index . 0 -}}
{{- $group := index . 1 -}}
metadata:
  labels: {{- include "tributary.labels" (list $chart "host") | nindent 4 }}
  annotations:
    checksum/secret: {{ include (print $chart.Template.BasePath "/secret.yaml") $chart | sha256sum }}
    ray.io/overwrite-container-cmd: "true"
spec:
  terminationGracePeriodSeconds: 60
  {{- include "tributary.podSettings" $chart | nindent 2 }}
  {{- include "tributary.placed" $group | nindent 2 }}
  containers:
    - name: tributary
      image: {{ include "tributary.image" $chart | quote }}
      imagePullPolicy: {{ $chart.Values.image.pullPolicy }}
      # KubeRay sets FQ_RAY_IP, the name of the head's service
      args: [join, "$(FQ_RAY_IP):6379"]
      env:
        # for KubeRay's init container, which waits for the head by `ray health-check` and gets no envFrom
        - {name: RAY_AUTH_MODE, value: token}
        - name: RAY_AUTH_TOKEN
          valueFrom: {secretKeyRef: {name: {{ include "tributary.secret" $chart }}, key: TRIBUTARY_KEY}}
        {{- include "tributary.env" $chart | nindent 8 }}
      envFrom:
        - secretRef: {name: {{ include "tributary.secret" $chart }}}
      startupProbe:
        exec: {command: [tributary, status]}
        periodSeconds: 10
        timeoutSeconds: 10
        failureThreshold: 60
      readinessProbe:
        exec: {command: [tributary, status]}
        periodSeconds: 30
        timeoutSeconds: 10
      livenessProbe:
        exec: {command: ["true"]}
      securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}
      resources: {{- include "tributary.resources" $group | nindent 8 }}
      volumeMounts:
        - {name: home, mountPath: /var/lib/tributary}
        - {name: shm, mountPath: /dev/shm}
  volumes:
    # a cache of models, and what is under way
    - name: home
      emptyDir: {sizeLimit: {{ $chart.Values.kuberay.cache }}}
    - name: shm
      emptyDir: {medium: Memory, sizeLimit: {{ $chart.Values.sharedMemory }}}
{{- end }}
