#!/usr/bin/env bash
# Makes an authority of the store's own, ca.crt and ca.key, and a certificate of the store, tls.crt and tls.key, in this folder.
# Keep ca.key elsewhere. cert-manager can keep a Secret dpserve-valkey-tls with the same names instead.
set -eu
umask 077
openssl req -x509 -newkey rsa:3072 -noenc -days 3650 -subj /CN=dpserve-store -addext keyUsage=critical,keyCertSign \
    -keyout ca.key -out ca.crt
openssl req -newkey rsa:3072 -noenc -subj /CN=dpserve-valkey -keyout tls.key -out tls.csr
names=DNS:dpserve-valkey,DNS:dpserve-valkey-0.dpserve-valkey,DNS:dpserve-valkey-1.dpserve-valkey,DNS:dpserve-valkey-2.dpserve-valkey
printf "subjectAltName=$names\nauthorityKeyIdentifier=keyid\n" > tls.ext
openssl x509 -req -days 365 -in tls.csr -CA ca.crt -CAkey ca.key -CAcreateserial -extfile tls.ext -out tls.crt
