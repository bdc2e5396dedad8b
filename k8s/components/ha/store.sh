#!/bin/sh
# Starts what a pod of the replicated store runs, or says how it is:
# sh store.sh valkey|sentinel|ready|quorum|status
#
# Which Valkey is the primary, the Sentinels know: each keeps it in /data/sentinel.conf, with the number of the failover that
# made it so. Where none of them runs, because all pods were stopped, two pods of three must agree before one is the primary
# again, for at each failover two knew of it. A pod whose volume is empty is a primary only where both others are empty, too.
#
# A password may be two, as `new,old`: the first is used, and both are accepted.
set -eu
trap 'exit 143' TERM # who waits ends when asked, as process 1, too
state=/data/sentinel.conf
lost=/data/primary-is-lost
others=$(for peer in $PEERS; do [ "$peer" = "$SELF" ] || echo "$peer"; done)
export REDISCLI_AUTH="${SENTINEL_PASSWORD%%,*}"

ask() { # HOST PORT WORDS...
    host=$1 port=$2
    shift 2
    timeout 5 valkey-cli --tls --cacert /etc/valkey-tls/ca.crt -h "$host" -p "$port" --user sentinel --no-auth-warning "$@" 2>/dev/null
}

of_state() { # NAME: the last word of a line of the Sentinel's state
    [ ! -e "$state" ] || sed -n "s/^sentinel $1\( .*\)\{0,1\} \([^ ]*\)\$/\2/p" "$state"
}

remembered() { # the number of the newest failover that this pod knows of, and the primary since
    [ ! -e "$state" ] || sed -n 's/^sentinel monitor ledger \([^ ]*\) .*/\1/p' "$state" | while read -r host; do
        echo "$(of_state 'config-epoch ledger' | grep . || echo 0) $host"
    done
}

watched() { # HOST: the same of the Sentinel there
    # While a failover ends, the number is the new one, and the address beside it is still that of the primary before: two
    # Sentinels that take different primaries under one number never agree again. So the address comes from the call that
    # tells the promoted one, and is asked for after the number: it is of this failover, or of a newer.
    number=$(ask "$1" 26379 SENTINEL PRIMARY ledger | sed -n '/^config-epoch$/{n;p;}')
    host=$(ask "$1" 26379 SENTINEL GET-PRIMARY-ADDR-BY-NAME ledger | head -n 1)
    [ -z "$number" ] || [ -z "$host" ] || echo "$number $host"
}

newest() { # the same of the newest failover that any knows of; the first pod where nobody knows of any
    known=$({ remembered; for peer in $others; do watched "$peer" || true; done; } | sort -n | tail -n 1)
    echo "${known:-0 ${PEERS%% *}}"
}

primary() { # whom to take for the primary
    known=$(newest) && echo "${known#* }"
}

is_primary() { # HOST
    [ "$(ask "$1" 6379 ROLE | head -n 1)" = master ]
}

accepted() { # PASSWORDS: as the rights of a user say them
    echo ">$1" | sed 's/,/ >/g'
}

replication() { # HOST: how its Valkey replicates
    ask "$1" 6379 INFO replication | tr -d '\r'
}

is_followed() { # HOST: whether a replica runs that had this primary's copy; one that has just started does not know its place
    for peer in $PEERS; do
        said=$(replication "$peer")
        if echo "$said" | grep -qx "master_host:$1" && ! echo "$said" | grep -qx 'master_link_down_since_seconds:-1'; then
            return 0
        fi
    done
    return 1
}

keys() { # HOST: how many keys a Valkey has; nothing where none answers
    ask "$1" 6379 DBSIZE | grep -x '[0-9][0-9]*' || true
}

may_be_primary() { # whether this pod may, where it is taken for the primary
    empty=0
    for peer in $others; do
        there=$(keys "$peer")
        if [ "$there" = 0 ]; then
            empty=$((empty + 1))
        elif [ -e /data/appendonlydir ]; then
            case $(watched "$peer") in *" $SELF") return 0 ;; esac
            [ -z "$there" ] || [ "$(ask "$peer" 6379 ROLE | sed -n 2p)" != "$SELF" ] || return 0
        fi
    done
    [ "$empty" = 2 ]
}

case $1 in
    valkey)
        while of=$(primary) && [ "$of" = "$SELF" ] && ! may_be_primary; do
            echo "waits until the others say who is the primary" && sleep 1
        done
        exec valkey-server /etc/valkey/replicated.conf - <<EOF
bind $POD_IP
replica-announce-ip $SELF
primaryauth ${REPLICA_PASSWORD%%,*}
$([ "$of" = "$SELF" ] || echo "replicaof $of 6379")
EOF
        ;;
    sentinel)
        # A replica that has just started does not know how far behind it is: nobody is chosen until the primary was seen,
        # by this Sentinel or by a replica. What the owner said of an earlier loss decides nothing.
        rm -f "$lost"
        # The number and the primary are of one reading: a failover may come between two.
        while known=$(newest) && of=${known#* } && ! is_primary "$of" && ! is_followed "$of" && [ ! -e "$lost" ]; do
            echo "waits for the primary, $of" && sleep 1
        done
        rm -f "$lost"
        epoch=${known%% *} && myid=$(of_state myid)
        umask 077
        cat /etc/valkey/sentinel.conf - > "$state.part" <<EOF
dir /data
bind $POD_IP
sentinel announce-ip $SELF
sentinel monitor ledger $of 6379 2
sentinel config-epoch ledger $epoch
sentinel current-epoch $(of_state current-epoch | grep . || echo "$epoch")
sentinel leader-epoch ledger $(of_state 'leader-epoch ledger' | grep . || echo "$epoch")
${myid:+sentinel myid $myid}
$(for peer in $PEERS; do [ "$peer" = "$of" ] || echo "sentinel known-replica ledger $peer 6379"; done)
sentinel auth-pass ledger ${SENTINEL_PASSWORD%%,*}
sentinel sentinel-pass ${SENTINEL_PASSWORD%%,*}
user sentinel on $(accepted "$SENTINEL_PASSWORD") &__sentinel__:hello +sentinel +ping +info +publish +client|setname
user lookup on $(accepted "$LOOKUP_PASSWORD") +sentinel|masters +sentinel|primaries +sentinel|ckquorum +ping +client|setinfo +client|setname
EOF
        sync "$state.part" # or a node that loses its power may keep the name, and nothing under it
        mv "$state.part" "$state"
        exec valkey-server "$state" --sentinel
        ;;
    ready) # a primary that takes writes, or a replica that has its copy
        said=$(replication "$SELF")
        case $said in
            *role:master*) echo "$said" | grep -q '^min_slaves_good_slaves:[1-9]' ;;
            *) echo "$said" | grep -qx 'master_link_status:up' ;;
        esac
        ;;
    quorum) # a Sentinel that sees enough others to make a replica the primary
        ask "$SELF" 26379 SENTINEL CKQUORUM ledger | grep -q '^OK'
        ;;
    status) # of all pods, as each sees it
        for peer in $PEERS; do
            echo "$peer: $(ask "$peer" 6379 ROLE | head -n 4 | tr '\n' ' '); its Sentinel: $(ask "$peer" 26379 SENTINEL CKQUORUM ledger || true), primary $(watched "$peer")"
        done
        ;;
esac
