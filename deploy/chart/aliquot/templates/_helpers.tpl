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

{{/* A selector of several parts: (list context components). */}}
{{- define "aliquot.several" -}}
matchLabels:
  app.kubernetes.io/name: {{ include "aliquot.name" (index . 0) }}
  app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
matchExpressions:
  - {key: app.kubernetes.io/component, operator: In, values: [{{ join ", " (index . 1) }}]}
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
{{ $image.repository }}{{ if $image.digest }}@{{ $image.digest }}{{ else }}:{{ default (index . 0).Chart.AppVersion $image.tag }}{{ if $image.pytorch }}-pytorch{{ end }}{{ end }}
{{- end }}

{{/* Where the coordinator is reached within the cluster. */}}
{{- define "aliquot.address" -}}
{{ include "aliquot.fullname" . }}-coordinator.{{ .Release.Namespace }}.svc:7070
{{- end }}

{{/* Lays one map over another, which is changed: (list below above). Unlike Helm's own, also false and "" count. */}}
{{- define "aliquot.over" -}}
{{- $below := index . 0 -}}
{{- range $key, $value := index . 1 -}}
{{- if and (kindIs "map" $value) (kindIs "map" (get $below $key)) -}}
{{- include "aliquot.over" (list (get $below $key) $value) -}}
{{- else -}}
{{- $_ := set $below $key $value -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* A table of TOML with all below it: (list name map). Helm's own toToml makes 7071.0 of 7071. */}}
{{- define "aliquot.toml" -}}
[{{ index . 0 }}]
{{- range $key, $value := index . 1 }}
{{- if not (or (kindIs "map" $value) (kindIs "invalid" $value)) }}
{{ $key }} = {{ include "aliquot.tomlValue" $value }}
{{- end }}
{{- end }}
{{- range $key, $value := index . 1 }}
{{- if and (kindIs "map" $value) $value }}

{{ include "aliquot.toml" (list (printf "%s.%s" (index $ 0) $key) $value) }}
{{- end }}
{{- end }}
{{- end }}

{{- define "aliquot.tomlValue" -}}
{{- if kindIs "map" . -}}
{ {{- range $number, $key := keys . | sortAlpha }}{{ if $number }}, {{ end }}{{ toJson $key }} = {{ include "aliquot.tomlValue" (get $ $key) }}{{ end -}} }
{{- else if kindIs "slice" . -}}
[{{ range $number, $each := . }}{{ if $number }}, {{ end }}{{ include "aliquot.tomlValue" $each }}{{ end }}]
{{- else -}}
{{ toJson . }}
{{- end -}}
{{- end }}

{{/* The Secret with tokens for metrics; empty: there is none. */}}
{{- define "aliquot.metricsSecret" -}}
{{- if .Values.metrics.tokenSecret }}{{ .Values.metrics.tokenSecret }}
{{- else if .Values.metrics.serviceMonitors }}{{ include "aliquot.fullname" . }}-metrics{{ end }}
{{- end }}

{{/* A budget for a part that has several pods: (list context component values). */}}
{{- define "aliquot.budget" -}}
{{- $context := index . 0 }}
{{- if and $context.Values.podDisruptionBudgets (gt (int (index . 2).replicas) 1) }}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ include "aliquot.fullname" $context }}-{{ index . 1 }}
  namespace: {{ $context.Release.Namespace }}
  labels: {{- include "aliquot.labels" (list $context (index . 1)) | nindent 4 }}
spec:
  maxUnavailable: 1
  selector:
    matchLabels: {{- include "aliquot.selector" (list $context (index . 1)) | nindent 6 }}
{{- end }}
{{- end }}

{{/* An account, bound to the ClusterRole of its own name: (list context component). */}}
{{- define "aliquot.account" -}}
{{- $context := index . 0 }}
{{- $name := printf "%s-%s" (include "aliquot.fullname" $context) (index . 1) -}}
apiVersion: v1
kind: ServiceAccount
metadata:
  name: {{ $name }}
  namespace: {{ $context.Release.Namespace }}
  labels: {{- include "aliquot.labels" . | nindent 4 }}
{{- end }}

{{- define "aliquot.clusterRoleBinding" -}}
{{- $context := index . 0 }}
{{- $name := printf "%s-%s" (include "aliquot.fullname" $context) (index . 1) -}}
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: {{ $name }}
  labels: {{- include "aliquot.labels" . | nindent 4 }}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: {{ $name }}}
subjects:
  - {kind: ServiceAccount, name: {{ $name }}, namespace: {{ $context.Release.Namespace }}}
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
{{- if and .Values.console.enabled .Values.console.ingress.enabled (not .Values.console.ingress.host) }}
{{- fail "console.ingress.host: name the host by which browsers reach the console" }}
{{- end }}
{{- if and .Values.agent.serveOutside (not (dig "hosting" "ports" "" .Values.agent.settings)) }}
{{- fail "agent.serveOutside needs agent.settings.hosting.ports: which ports of the host, such as 40000-40099" }}
{{- end }}
{{- end }}
