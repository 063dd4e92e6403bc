{{- /* The operator's settings: pdd_operator/settings.py says what each means. */ -}}
{{- define "pdd-operator.environment" -}}
{{- $images := .Values.images -}}
{{- $own := dict "registry" $images.registry "defaultTag" .Chart.AppVersion -}}
- name: PDD_OPERATOR_NAMESPACE
  valueFrom: {fieldRef: {fieldPath: metadata.namespace}}
- name: PDD_OPERATOR_POD_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
- name: PDD_OPERATOR_POD_LABELS
  value: {{ include "pdd-operator.selectorPairs" . | quote }}
- name: PDD_OPERATOR_WATCH_NAMESPACES
  value: {{ join "," .Values.watchNamespaces | quote }}
- name: PDD_OPERATOR_IMAGE_ROUTER
  value: {{ include "pdd-operator.image" (merge (dict "image" $images.router) $own) | quote }}
- name: PDD_OPERATOR_IMAGE_CONNECTOR
  value: {{ include "pdd-operator.image" (merge (dict "image" $images.connector) $own) | quote }}
{{- range $platform, $image := $images.engine }}
{{- with include "pdd-operator.image" (dict "image" $image "registry" $images.engineRegistry "defaultTag" "") }}
- name: PDD_OPERATOR_IMAGE_ENGINE_{{ upper $platform }}
  value: {{ . | quote }}
{{- end }}
{{- end }}
- name: PDD_OPERATOR_API_SERVER_PORTS
  value: {{ join "," .Values.networkPolicy.apiServerPorts | quote }}
- name: PDD_OPERATOR_ALLOW_PRIVILEGED
  value: {{ .Values.allowPrivileged | quote }}
- name: PDD_OPERATOR_LEADER_ELECTION
  value: {{ .Values.leaderElection.enabled | quote }}
- name: PDD_OPERATOR_LEASE_NAME
  value: {{ include "pdd-operator.fullname" . | quote }}
- name: PDD_OPERATOR_LEASE_DURATION_SECONDS
  value: {{ .Values.leaderElection.leaseDurationSeconds | quote }}
- name: PDD_OPERATOR_LEASE_RENEW_SECONDS
  value: {{ .Values.leaderElection.renewSeconds | quote }}
- name: PDD_OPERATOR_RESYNC_SECONDS
  value: {{ .Values.resyncSeconds | quote }}
- name: PDD_OPERATOR_WORKERS
  value: {{ .Values.workers | quote }}
- name: PDD_OPERATOR_REQUEST_TIMEOUT_SECONDS
  value: {{ .Values.requestTimeoutSeconds | quote }}
- name: PDD_OPERATOR_HTTP_PORT
  value: "8080"
- name: PDD_OPERATOR_LOG_LEVEL
  value: {{ .Values.logLevel | quote }}
{{- end -}}

{{- /* The operator's pods as key=value,key=value: engines let them read their metrics. */ -}}
{{- define "pdd-operator.selectorPairs" -}}
{{- $pairs := list -}}
{{- range $key, $value := include "pdd-operator.selectorLabels" . | fromYaml -}}
{{- $pairs = append $pairs (printf "%s=%s" $key (toString $value)) -}}
{{- end -}}
{{- join "," $pairs -}}
{{- end -}}
