#!/bin/sh
# Makes or upgrades the tables of the Temporal server. Its two databases are made by deploy/postgres/databases.sh.
set -eu
SQL_PASSWORD=$(cat /run/secrets/temporal_password)
export SQL_PASSWORD
for name in temporal visibility; do
  database=temporal
  [ "$name" = temporal ] || database=temporal_visibility
  set -- --plugin postgres12 --ep "$POSTGRES_HOST" --port 5432 --user temporal --db "$database"
  # The first fails if the tables already exist; the second reports any other fault.
  temporal-sql-tool "$@" setup-schema --version 0.0 || true
  temporal-sql-tool "$@" update-schema --schema-dir "/etc/temporal/schema/postgresql/v12/$name/versioned"
done
