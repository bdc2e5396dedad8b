#!/usr/bin/env bash
# Writes the users of the store, with new passwords, and the addresses by which the service and the owner's jobs reach it.
# Run it once, in the repository's folder: a repeat makes new passwords, and pods with the old ones are refused until they
# have started again. Git ignores what it writes.
set -eu
umask 077
O=k8s/overlays/redis
rm -f $O/users.acl $O/secret.env $O/owner.env
writes='~dpserve:* +@read +@write +@scripting +@connection +time +waitaof -@dangerous +config|get +info +role'
echo 'user default off ~* &* +@all' > $O/users.acl
add() {
    password=$(python3 -c 'import secrets; print(secrets.token_hex(24))')
    echo "user $1 on >$password $3" >> $O/users.acl
    echo "DPSERVE_LEDGER=rediss://$1:$password@dpserve-valkey:6379/0?ssl_ca_certs=/etc/dpserve-valkey-tls/ca.crt" > "$O/$2"
}
add dpserve secret.env "$writes"
add owner owner.env "$writes"
