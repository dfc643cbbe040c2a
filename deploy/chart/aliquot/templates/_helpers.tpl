{{- define "aliquot.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" }}
{{- end }}

{{- define "aliquot.fullname" -}}
{{- if .Values.fullnameOverride }}{{ .Values.fullnameOverride | trunc 40 | trimSuffix "-" }}
{{- else if contains (include "aliquot.name" .) .Release.Name }}{{ .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else }}{{ printf "%s-%s" .Release.Name (include "aliquot.name" .) | trunc 40 | trimSuffix "-" }}{{ end }}
{{- end }}

{{/* Labels of a part: (list context "coordinator"). */}}
{{- define "aliquot.selector" -}}
app.kubernetes.io/name: {{ include "aliquot.name" (index . 0) }}
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{- define "aliquot.labels" -}}
{{ include "aliquot.selector" . }}
app.kubernetes.io/version: {{ (index . 0).Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ (index . 0).Release.Service }}
helm.sh/chart: {{ printf "%s-%s" (index . 0).Chart.Name (index . 0).Chart.Version }}
{{- end }}

{{/* (list context image) */}}
{{- define "aliquot.image" -}}
{{- $image := index . 1 -}}
{{ $image.repository }}{{ if $image.digest }}@{{ $image.digest }}{{ else }}:{{ default (index . 0).Chart.AppVersion $image.tag }}{{ end }}
{{- end }}

{{/* Where the coordinator is reached within the cluster. */}}
{{- define "aliquot.address" -}}
{{ include "aliquot.fullname" . }}-coordinator.{{ .Release.Namespace }}.svc:7070
{{- end }}

{{/* What an unprivileged container may do: nothing. */}}
{{- define "aliquot.locked" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
capabilities: {drop: [ALL]}
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{/* Where a part's pods go, and before whom: (list context values). */}}
{{- define "aliquot.placing" -}}
{{- $part := index . 1 -}}
{{- with $part.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with (index . 0).Values.image.pullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $part.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $part.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $part.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* A process of ours without a port says that its loop turns by a file. */}}
{{- define "aliquot.alive" -}}
exec:
  command: [python3, -c, "import os, sys, time; sys.exit(time.time() - os.stat('/tmp/alive').st_mtime > 60)"]
initialDelaySeconds: 30
periodSeconds: 20
timeoutSeconds: 10
{{- end }}

{{/* A client of the coordinator: its address, its authority, and the account's projected token. */}}
{{- define "aliquot.clientEnv" -}}
- {name: ALIQUOT_COORDINATOR, value: {{ include "aliquot.address" . | quote }}}
- {name: ALIQUOT_CLIENT_TLS_CA_FILE, value: /etc/aliquot/tls/ca.crt}
- {name: ALIQUOT_SERVICE_ACCOUNT_FILE, value: /var/run/secrets/aliquot/token}
{{- end }}

{{- define "aliquot.clientMounts" -}}
- {name: authority, mountPath: /etc/aliquot/tls, readOnly: true}
- {name: account, mountPath: /var/run/secrets/aliquot, readOnly: true}
{{- end }}

{{- define "aliquot.clientVolumes" -}}
- name: authority
  secret: {secretName: {{ .Values.tls.secretName }}, items: [{key: ca.crt, path: ca.crt}]}
- name: account
  projected:
    sources:
      - serviceAccountToken: {audience: aliquot, path: token, expirationSeconds: 43200}
{{- end }}

{{/* The cluster's minor version; some say 30+. */}}
{{- define "aliquot.minor" -}}
{{ .Capabilities.KubeVersion.Minor | trimSuffix "+" }}
{{- end }}

{{/* Whether the webhook is there; empty: it is not. */}}
{{- define "aliquot.webhook" -}}
{{- if .Values.webhook.enabled }}true{{ end }}
{{- end }}

{{/* A scheduler must not be newer than the API server: it would wait for kinds that are not served there. */}}
{{- define "aliquot.schedulerTag" -}}
{{ default (regexFind "^v[0-9]+\\.[0-9]+\\.[0-9]+" .Capabilities.KubeVersion.Version) .Values.kube.scheduler.tag }}
{{- end }}

{{/* What can't be told by the schema. */}}
{{- define "aliquot.check" -}}
{{- with .Values.coordinator }}
{{- if and (gt (int .replicas) 1) (eq .journal.type "sqlite") }}
{{- fail "coordinator.replicas: a SQLite journal has one coordinator; set coordinator.journal.type=postgres for several" }}
{{- end }}
{{- if and (eq .journal.type "postgres") (not .journal.postgres.dsn) }}
{{- fail "coordinator.journal.postgres.dsn: name the database, such as host=db dbname=aliquot user=aliquot sslmode=verify-full" }}
{{- end }}
{{- end }}
{{- if and .Values.node.enabled (eq .Values.node.mode "dra") (lt (include "aliquot.minor" . | int) 36) }}
{{- fail (printf "node.mode=dra needs Kubernetes 1.36, and this cluster has %s; set node.mode=classic" .Capabilities.KubeVersion.Version) }}
{{- end }}
{{- if and (eq .Values.node.mode "dra") (ne .Values.node.injection "cdi") }}
{{- fail "node.mode=dra gives claims to containers by CDI; set node.injection=cdi" }}
{{- end }}
{{- if and .Values.metrics.serviceMonitors (not .Values.metrics.tokenSecret) }}
{{- fail "metrics.serviceMonitors needs metrics.tokenSecret: metrics are shown to who has a token" }}
{{- end }}
{{- end }}
