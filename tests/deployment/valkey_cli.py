"""A `valkey-cli` with the words that k8s/components/ha/store.sh uses, where the machine has none.

A test starts hundreds of them, so it loads no more than it needs.
"""

import os
import socket
import sys
from argparse import REMAINDER, ArgumentParser

from hiredis import Reader, ReplyError, pack_command


def lines(reply):
    """The lines that valkey-cli prints where it does not write to a terminal."""
    if isinstance(reply, list):
        return [line for each in reply for line in lines(each)]
    if isinstance(reply, dict):
        return [line for pair in reply.items() for each in pair for line in lines(each)]
    return [reply.decode() if isinstance(reply, bytes) else "" if reply is None else str(reply)]


def asked(connection, *words):
    """Return the server's reply to one command: an error that it replies, too."""
    reader = Reader()
    connection.sendall(pack_command(words))
    while (reply := reader.gets()) is False:
        content = connection.recv(65_536)
        if not content:
            raise ConnectionError("the server closed the connection")
        reader.feed(content)
    return reply


def main():
    """Send a server one command, and print the reply."""
    parser = ArgumentParser(add_help=False)
    parser.add_argument("-h", dest="host")
    parser.add_argument("-p", dest="port", type=int)
    parser.add_argument("--user")
    parser.add_argument("--no-auth-warning", action="store_true")
    parser.add_argument("words", nargs=REMAINDER)
    told = parser.parse_args()
    try:
        with socket.create_connection((told.host, told.port), 10) as connection:
            welcome = asked(connection, "AUTH", told.user, os.environ["REDISCLI_AUTH"])
            if isinstance(welcome, ReplyError):
                sys.exit(str(welcome))
            print("\n".join(lines(asked(connection, *told.words))))
    except OSError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
