{{- define "warren.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) | trunc 52 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "warren.selector" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "warren.labels" -}}
{{ include "warren.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "warren.secret" -}}
{{- default (include "warren.fullname" .) .Values.auth.existingSecret -}}
{{- end -}}

{{- define "warren.clusterSecret" -}}
{{- default (printf "%s-cluster" (include "warren.fullname" .)) .Values.cluster.existingSecret -}}
{{- end -}}

{{/* "yes" where the nodes elect their leader, also when there is one node only; else empty. */}}
{{- define "warren.clustered" -}}
{{- if and .Values.etcd.endpoints .Values.etcd.install -}}
{{- fail "etcd.endpoints and etcd.install: one of them is the etcd of this cluster" -}}
{{- end -}}
{{- if or .Values.etcd.endpoints .Values.etcd.install -}}
{{- if gt (int .Values.replicas) (int .Values.cluster.maxNodes) -}}
{{- fail (printf "replicas: %d is more than cluster.maxNodes, %d" (int .Values.replicas) (int .Values.cluster.maxNodes)) -}}
{{- end -}}
{{- if .Values.persistence.existingClaim -}}
{{- fail "persistence.existingClaim: nodes of a cluster cannot share a volume" -}}
{{- end -}}
yes
{{- else if gt (int .Values.replicas) 1 -}}
{{- fail "replicas: more than one node needs etcd.endpoints, or etcd.install=true" -}}
{{- end -}}
{{- end -}}

{{- define "warren.etcdSelector" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride }}-etcd
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "warren.etcdEndpoints" -}}
{{- if .Values.etcd.install -}}
{{- $name := printf "%s-etcd" (include "warren.fullname" .) -}}
{{- range $number := until 3 -}}
{{- if $number }},{{ end }}http://{{ $name }}-{{ $number }}.{{ $name }}.$(POD_NAMESPACE).svc:2379
{{- end -}}
{{- else -}}
{{- .Values.etcd.endpoints -}}
{{- end -}}
{{- end -}}

{{/* The pod's variables fill in its namespace. A name that is too long is cut, which only Helm can do. */}}
{{- define "warren.clusterName" -}}
{{- $fullname := include "warren.fullname" . -}}
{{- $name := printf "%s-%s" .Release.Namespace $fullname -}}
{{- if .Values.cluster.name -}}
{{- .Values.cluster.name -}}
{{- else if gt (len $name) 64 -}}
{{- trunc 64 $name -}}
{{- else -}}
$(POD_NAMESPACE)-{{ $fullname }}
{{- end -}}
{{- end -}}
