"""A `valkey-cli` with the words that k8s/components/ha/store.sh uses, where the machine has none."""

import argparse
import os
import sys

import redis


def lines(reply):
    """The lines that valkey-cli prints where it does not write to a terminal."""
    if isinstance(reply, list):
        return [line for each in reply for line in lines(each)]
    if isinstance(reply, dict):
        return [line for pair in reply.items() for each in pair for line in lines(each)]
    return [reply.decode() if isinstance(reply, bytes) else "" if reply is None else str(reply)]


def main():
    """Send a server one command, and print the reply."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("-h", dest="host")
    parser.add_argument("-p", dest="port", type=int)
    parser.add_argument("--user")
    parser.add_argument("--no-auth-warning", action="store_true")
    parser.add_argument("words", nargs=argparse.REMAINDER)
    told = parser.parse_args()
    client = redis.Redis(told.host, told.port, username=told.user, password=os.environ["REDISCLI_AUTH"], protocol=2)
    client.response_callbacks.clear()
    try:
        print("\n".join(lines(client.execute_command(*told.words))))
    except redis.ResponseError as error:
        print(error)
    except redis.RedisError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
