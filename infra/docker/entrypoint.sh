#!/usr/bin/env bash
# Starts the stack, runs the given command or stays until it is told to end, and stops the stack.
# `serve`: stay (the default); `join HOST:PORT`: stay as a further host of the stack whose Ray head is there.
set -euo pipefail
trap 'tributary down' EXIT
trap 'exit 143' TERM
trap 'exit 130' INT

if [ "${1:-}" = join ]; then
  tributary up --join "${2:?HOST:PORT of the Ray head to join}"
else
  tributary up
fi

if [ "${1:-serve}" = serve ] || [ "$1" = join ]; then
  tributary status
  while tributary status >/dev/null; do
    sleep 30 &
    wait $! # a signal ends the wait, not the sleep
  done
  echo "a part of the stack is down: starting it again" >&2
  exec "$0" "$@"
fi
"$@"
