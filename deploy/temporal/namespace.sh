#!/bin/sh
# Makes the namespace and the search attributes by which standfast finds runs, unless they are there.
set -eu
until temporal operator cluster health >/dev/null 2>&1; do sleep 2; done
temporal operator namespace describe --namespace "$TEMPORAL_NAMESPACE" >/dev/null 2>&1 ||
  temporal operator namespace create --namespace "$TEMPORAL_NAMESPACE" --retention "$RETENTION"
known=""
until known=$(temporal operator search-attribute list --namespace "$TEMPORAL_NAMESPACE" 2>/dev/null); do sleep 2; done
while read -r name type; do
  case "$known" in
    *"$name"*) ;;
    *) temporal operator search-attribute create --namespace "$TEMPORAL_NAMESPACE" --name "$name" --type "$type" ;;
  esac
done <<'ATTRIBUTES'
StandfastStatus Keyword
StandfastWaiting KeywordList
StandfastDeadline Datetime
StandfastSession Keyword
StandfastTenant Keyword
StandfastGroup KeywordList
ATTRIBUTES
