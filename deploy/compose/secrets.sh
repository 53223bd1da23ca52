#!/usr/bin/env bash
# Makes what secured.yml mounts: an authority, and for each process a folder with its certificate.
#
#   bash secrets.sh [FOLDER]                                   # default: ./secrets beside this file
#   NAMES=DNS:orchid.example,IP:192.0.2.7 bash secrets.sh      # names by which callers come in
#
# Run again it renews the certificates and keeps the authority and the identities; processes take
# new ones at their next handshake. The authority's key is in FOLDER/authority, which nobody mounts.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# The group of the images' user, who has to read the keys.
group=10001
umask 077
mkdir -p "${1:-$here/secrets}/authority"
cd "${1:-$here/secrets}"

if [ ! -e authority/ca.key ]; then
    openssl ecparam -name prime256v1 -genkey -noout -out authority/ca.key
    openssl req -x509 -new -key authority/ca.key -sha256 -days 1825 -subj '/CN=orchid authority' \
        -addext keyUsage=critical,keyCertSign,cRLSign -out authority/ca.crt
fi

give() { # PATH...: to the processes, as far as this user may
    chmod g+rX "$@"
    if [ "$(id -u)" = 0 ]; then chgrp "$group" "$@"; fi
}

issue() { # FOLDER ALTERNATIVE-NAMES
    mkdir -p "$1"
    openssl ecparam -name prime256v1 -genkey -noout -out "$1/tls.key.new"
    openssl req -new -key "$1/tls.key.new" -subj "/CN=orchid-$1" |
        openssl x509 -req -CA authority/ca.crt -CAkey authority/ca.key -CAcreateserial \
            -sha256 -days 90 -out "$1/tls.crt.new" \
            -extfile <(printf 'subjectAltName=%s\nauthorityKeyIdentifier=keyid\n' "$2")
    cp authority/ca.crt "$1/ca.crt.new"
    give "$1" "$1"/*.new
    for name in tls.key tls.crt ca.crt; do mv "$1/$name.new" "$1/$name"; done
}

issue controlplane "DNS:controlplane,DNS:localhost,IP:127.0.0.1${NAMES:+,$NAMES}"
for name in worker caller operator prometheus; do issue "$name" "DNS:orchid-$name"; done
if [ ! -e controlplane/identities.yaml ]; then
    cp "$here/../kubernetes/components/tls/identities.yaml" controlplane/identities.yaml
    give controlplane/identities.yaml
fi
if [ "$(id -u)" != 0 ]; then
    echo "let the containers read their keys: sudo chgrp -R $group $PWD/{controlplane,worker,caller,prometheus}" >&2
fi
