#!/usr/bin/env bash
# Starts the stack, runs the given command or stays until it is told to end, and stops the stack.
set -euo pipefail

tributary up
trap 'tributary down' EXIT
trap 'exit 143' TERM
trap 'exit 130' INT

if [ "${1:-serve}" = serve ]; then
  tributary status
  while tributary status >/dev/null; do
    sleep 30 &
    wait $! # a signal ends the wait, not the sleep
  done
  echo "a part of the stack is down: starting it again" >&2
  exec "$0" serve
fi
"$@"
