#!/usr/bin/env bash
# Writes the users by whom the three Valkeys of `ha` and their Sentinels know each other, and the addresses with the Sentinels.
# Run it in the repository's folder after store-users.sh. It keeps the passwords that are in ha.env, and may run again.
set -eu
umask 077
O=k8s/overlays/redis H=k8s/components/ha
touch $H/ha.env && chmod 600 $H/ha.env $O/users.acl $O/*.env
watches='&__sentinel__:hello +ping +info +role +dbsize +publish +subscribe +multi +exec +slaveof +replicaof +config|rewrite +client|setname +client|kill +script|kill'
hosts=dpserve-valkey-0.dpserve-valkey:26379,dpserve-valkey-1.dpserve-valkey:26379,dpserve-valkey-2.dpserve-valkey:26379
for name in SENTINEL REPLICA LOOKUP; do
    grep -qs "^${name}_PASSWORD=" $H/ha.env || echo "${name}_PASSWORD=$(python3 -c 'import secrets; print(secrets.token_hex(24))')" >> $H/ha.env
done
. $H/ha.env
sed -i '/^user sentinel /d; /^user replica /d' $O/users.acl
echo "user sentinel on >${SENTINEL_PASSWORD//,/ >} $watches" >> $O/users.acl
echo "user replica on >${REPLICA_PASSWORD//,/ >} +ping +replconf +psync" >> $O/users.acl
for file in $O/*.env; do
    sed -i -f /dev/stdin $file <<< "s|=rediss.*://\(.*\)@.*[?&]ssl_ca|=rediss+sentinel://\1@$hosts/ledger?sentinel_username=lookup\&sentinel_password=${LOOKUP_PASSWORD%%,*}\&ssl_ca|"
    grep -q '^DPSERVE_LEDGER_REPLICAS=' $file || echo DPSERVE_LEDGER_REPLICAS=1 >> $file
done
