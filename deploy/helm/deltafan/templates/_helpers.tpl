{{- define "deltafan.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 50 | trimSuffix "-" -}}
{{- end }}

{{- /* Name of all objects. Short enough for the suffixes. */ -}}
{{- define "deltafan.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else if contains (include "deltafan.name" .) .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "deltafan.name" .) | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end }}

{{- define "deltafan.siblings" -}}
{{- printf "%s-siblings" (include "deltafan.fullname" .) -}}
{{- end }}

{{- define "deltafan.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "deltafan.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end }}

{{- define "deltafan.selector" -}}
app.kubernetes.io/name: {{ include "deltafan.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "deltafan.labels" -}}
{{ include "deltafan.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/component: relay
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "deltafan.image" -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) -}}
{{- end -}}
{{- end }}

{{- /* Secrets of the two sides. */ -}}
{{- define "deltafan.tlsSecret" -}}
{{- if or .Values.tls.secretName .Values.tls.certManager.enabled -}}
{{- default (printf "%s-tls" (include "deltafan.fullname" .)) .Values.tls.secretName -}}
{{- end -}}
{{- end }}

{{- define "deltafan.upstreamSecret" -}}
{{- if or .Values.upstreamTls.secretName .Values.upstreamTls.certManager.enabled -}}
{{- default (printf "%s-upstream-tls" (include "deltafan.fullname" .)) .Values.upstreamTls.secretName -}}
{{- end -}}
{{- end }}

{{- /* Paths of the listener's files, and of the authority of its certificate. */ -}}
{{- define "deltafan.serverFiles" -}}
{{- $files := .Values.tls.files -}}
{{- if $files.cert -}}
{{- if not $files.key -}}
{{- fail "tls.files: set `cert` and `key`" -}}
{{- end -}}
{{- if include "deltafan.tlsSecret" . -}}
{{- fail "tls.files: the certificate comes from files or from a Secret, not from both" -}}
{{- end -}}
{{- dict "cert" $files.cert "key" $files.key "ca" $files.clientCA | toYaml -}}
{{- else -}}
{{- dict "cert" "/etc/deltafan-tls/server/tls.crt" "key" "/etc/deltafan-tls/server/tls.key" "ca" "/etc/deltafan-tls/server/ca.crt" | toYaml -}}
{{- end -}}
{{- end }}

{{- /* Secret or ConfigMap with the authorities of clients, as words: "Secret mesh-ca". Empty: there is none. */ -}}
{{- define "deltafan.clientCA" -}}
{{- with .Values.tls.clientCA -}}
{{- if and .secretName .configMapName -}}
{{- fail "tls.clientCA: set `secretName` or `configMapName`, not both" -}}
{{- end -}}
{{- if .secretName -}}
Secret {{ .secretName }}
{{- else if .configMapName -}}
ConfigMap {{ .configMapName }}
{{- end -}}
{{- end -}}
{{- end }}

{{- /* Seconds of a duration of the relay, rounded up: "1.5m" is 90. */ -}}
{{- define "deltafan.seconds" -}}
{{- $text := toString . -}}
{{- if not (regexMatch "^[0-9]+(\\.[0-9]+)?(ms|s|m|h)$" $text) -}}
{{- fail (printf "config.downstream.drain: `%s` is no duration, as 300ms, 20s, 1.5h" $text) -}}
{{- end -}}
{{- $unit := regexFind "[a-z]+$" $text -}}
{{- $number := trimSuffix $unit $text | float64 -}}
{{- ceil (divf (mulf $number (get (dict "ms" 1 "s" 1000 "m" 60000 "h" 3600000) $unit)) 1000) | int -}}
{{- end }}

{{- /* The relay's configuration: the values, and what the chart knows. */ -}}
{{- define "deltafan.config" -}}
{{- $config := deepCopy .Values.config -}}
{{- $upstream := get $config "upstream" | default dict -}}
{{- if not (or $upstream.servers $upstream.directory) -}}
{{- fail "config.upstream.servers: set the address of the control plane, as in `--set config.upstream.servers[0].uri=http://control-plane.xds.svc:18000`" -}}
{{- end -}}
{{- $downstream := get $config "downstream" | default dict -}}
{{- if hasKey $downstream "listeners" -}}
{{- fail "config.downstream.listeners: the chart writes it, from `bindAddress`, `port` and `tls`" -}}
{{- end -}}
{{- $admin := get $config "admin" | default dict -}}
{{- if omit $admin "hosts" -}}
{{- fail "config.admin: only `hosts` may be set; the chart writes the address, from `bindAddress` and `adminPort`" -}}
{{- end -}}
{{- $snapshot := get $config "snapshot" | default dict -}}
{{- if hasKey $snapshot "path" -}}
{{- fail "config.snapshot.path: the chart writes it; `snapshot.volume` says where the snapshot is kept" -}}
{{- end -}}
{{- /* Listener. */ -}}
{{- $listener := dict "address" (printf "%s:%d" .Values.bindAddress (int .Values.port)) -}}
{{- $tls := .Values.tls -}}
{{- if $tls.enabled -}}
{{- if not (or $tls.files.cert (include "deltafan.tlsSecret" .)) -}}
{{- fail "tls.enabled: set tls.secretName, tls.certManager.enabled, or tls.files" -}}
{{- end -}}
{{- $server := include "deltafan.serverFiles" . | fromYaml -}}
{{- $files := dict "cert_file" $server.cert "key_file" $server.key -}}
{{- if $tls.files.clientCA -}}
{{- $_ := set $files "client_ca_file" $tls.files.clientCA -}}
{{- else if include "deltafan.clientCA" . -}}
{{- $_ := set $files "client_ca_file" (printf "/etc/deltafan-tls/clients/%s" $tls.clientCA.key) -}}
{{- if $tls.clientCA.crlKey -}}
{{- $_ := set $files "crl_file" (printf "/etc/deltafan-tls/clients/%s" $tls.clientCA.crlKey) -}}
{{- end -}}
{{- end -}}
{{- $_ := set $listener "tls" $files -}}
{{- end -}}
{{- $_ := set $downstream "listeners" (list $listener) -}}
{{- if not (hasKey $downstream "drain") -}}
{{- /* A tenth of it is the time in which every node learns that the pod goes. */ -}}
{{- $_ := set $downstream "drain" "30s" -}}
{{- end -}}
{{- $_ := set $config "downstream" $downstream -}}
{{- $_ := set $admin "address" (printf "%s:%d" .Values.bindAddress (int .Values.adminPort)) -}}
{{- $_ := set $config "admin" $admin -}}
{{- /* Control planes. */ -}}
{{- $servers := list -}}
{{- range $server := $upstream.servers -}}
{{- if and (include "deltafan.upstreamSecret" $) (hasPrefix "https://" $server.uri) (not (hasKey $server "tls")) -}}
{{- $files := dict "ca_file" "/etc/deltafan-tls/upstream/ca.crt" -}}
{{- if $.Values.upstreamTls.clientCertificate -}}
{{- $_ := set $files "cert_file" "/etc/deltafan-tls/upstream/tls.crt" -}}
{{- $_ := set $files "key_file" "/etc/deltafan-tls/upstream/tls.key" -}}
{{- end -}}
{{- with $.Values.upstreamTls.serverName -}}
{{- $_ := set $files "server_name" . -}}
{{- end -}}
{{- $_ := set $server "tls" $files -}}
{{- end -}}
{{- $servers = append $servers $server -}}
{{- end -}}
{{- if .Values.siblings.enabled -}}
{{- if $upstream.directory -}}
{{- fail "siblings.enabled: relays of a directory need no siblings" -}}
{{- end -}}
{{- $scheme := ternary "https" "http" $tls.enabled -}}
{{- $sibling := dict "uri" (printf "%s://%s.%s.svc:%d" $scheme (include "deltafan.siblings" .) .Release.Namespace (int .Values.port)) -}}
{{- if $tls.enabled -}}
{{- $server := include "deltafan.serverFiles" . | fromYaml -}}
{{- if not $server.ca -}}
{{- fail "siblings.enabled: set tls.files.clientCA, the authority of the relays" -}}
{{- end -}}
{{- $files := dict "ca_file" $server.ca -}}
{{- if or $tls.files.clientCA (include "deltafan.clientCA" .) -}}
{{- $_ := set $files "cert_file" $server.cert -}}
{{- $_ := set $files "key_file" $server.key -}}
{{- end -}}
{{- $_ := set $sibling "tls" $files -}}
{{- end -}}
{{- $servers = append $servers $sibling -}}
{{- end -}}
{{- if $servers -}}
{{- $_ := set $upstream "servers" $servers -}}
{{- end -}}
{{- $_ := set $config "upstream" $upstream -}}
{{- /* A directory is read at each start: there is nothing to keep. */ -}}
{{- if and (ne .Values.snapshot.volume "none") (not $upstream.directory) -}}
{{- $_ := set $snapshot "path" "/var/lib/deltafan/snapshot" -}}
{{- $_ := set $config "snapshot" $snapshot -}}
{{- end -}}
{{- toYaml $config -}}
{{- end }}

{{- /* Digest of the keys that take effect at the next start: pods are replaced when it changes. */ -}}
{{- define "deltafan.restartDigest" -}}
{{- $config := include "deltafan.config" . | fromYaml -}}
{{- range .Files.Lines "files/reloaded-keys.txt" -}}
{{- $path := splitList "." . -}}
{{- $section := get $config (first $path) -}}
{{- if eq (len $path) 1 -}}
{{- $config = omit $config (first $path) -}}
{{- else if $section -}}
{{- $section = omit $section (last $path) -}}
{{- if $section -}}
{{- $_ := set $config (first $path) $section -}}
{{- else -}}
{{- $config = omit $config (first $path) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toYaml $config | sha256sum -}}
{{- end }}

{{- define "deltafan.hasSnapshot" -}}
{{- if and (ne .Values.snapshot.volume "none") (not (dig "upstream" "directory" "" .Values.config)) -}}true{{- end -}}
{{- end }}
