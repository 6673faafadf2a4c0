#!/bin/sh
# Makes the databases of Temporal and of standfast, each with an owner of its own, when the data folder is new.
set -eu
secret() { cat "/run/secrets/$1"; }
psql --username "$POSTGRES_USER" --dbname postgres --set ON_ERROR_STOP=1 \
  --set temporal="$(secret temporal_password)" --set standfast="$(secret standfast_password)" <<'SQL'
CREATE ROLE temporal LOGIN PASSWORD :'temporal';
CREATE ROLE standfast LOGIN PASSWORD :'standfast';
CREATE DATABASE temporal OWNER temporal;
CREATE DATABASE temporal_visibility OWNER temporal;
CREATE DATABASE standfast OWNER standfast;
SQL
