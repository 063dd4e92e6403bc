{{- define "pdd-operator.name" -}}
{{- .Values.nameOverride | default .Chart.Name | trunc 63 | trimAll "-" -}}
{{- end -}}

{{- /* Name of the chart's objects: at most 63 characters, and 12 of those are left for what is appended. */ -}}
{{- define "pdd-operator.fullname" -}}
{{- $name := include "pdd-operator.name" . -}}
{{- $full := ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) -}}
{{- .Values.fullnameOverride | default $full | trunc 51 | trimAll "-" -}}
{{- end -}}

{{- /* Name of an object without a namespace: two releases of one name in two namespaces must not meet in it. */ -}}
{{- define "pdd-operator.clusterName" -}}
{{- printf "%s-%s" .Release.Namespace (include "pdd-operator.fullname" .) | trunc 120 | trimAll "-" -}}
{{- end -}}

{{- define "pdd-operator.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- .Values.serviceAccount.name | default (include "pdd-operator.fullname" .) -}}
{{- else -}}
{{- required "serviceAccount.name must be set where serviceAccount.create is false" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- /* Labels that selectors use; they never change within a release. */ -}}
{{- define "pdd-operator.selectorLabels" -}}
app.kubernetes.io/name: {{ include "pdd-operator.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/component: operator
{{- end -}}

{{- define "pdd-operator.labels" -}}
{{- $own := dict
  "helm.sh/chart" (printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimAll "-")
  "app.kubernetes.io/version" .Chart.AppVersion
  "app.kubernetes.io/managed-by" .Release.Service
  "app.kubernetes.io/part-of" "pdserve" -}}
{{- merge $own (include "pdd-operator.selectorLabels" . | fromYaml) .Values.commonLabels | toYaml -}}
{{- end -}}

{{- /* registry/repository:tag or @digest. Takes a dict: image, registry, defaultTag. Empty where there is no repository. */ -}}
{{- define "pdd-operator.image" -}}
{{- with .image -}}
{{- if .repository -}}
{{- $registry := .registry | default $.registry -}}
{{- if and $registry (contains ":" .repository) -}}
{{- fail (printf "images: %s names a registry, and there is %s" .repository $registry) -}}
{{- end -}}
{{- $name := ternary .repository (printf "%s/%s" (trimSuffix "/" $registry) .repository) (empty $registry) -}}
{{- if .digest -}}
{{- printf "%s@%s" $name .digest -}}
{{- else -}}
{{- $tag := .tag | default $.defaultTag -}}
{{- printf "%s:%s" $name (required (printf "images: %s must have a tag or a digest" .repository) $tag) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
