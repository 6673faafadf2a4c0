#!/bin/sh
# Starts the Temporal server with its password from a file: the image takes it from the environment only.
set -eu
POSTGRES_PWD=$(cat /run/secrets/temporal_password)
export POSTGRES_PWD
exec /etc/temporal/entrypoint.sh
