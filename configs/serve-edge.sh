#!/bin/sh
# An engine host that requires client certificates, and an edge that has one, both on this machine:
#   curl http://127.0.0.1:8080/v1/models        goes to the edge, and over QUIC to the engine host on port 8000
set -eu
folder=$(mktemp -d)
key="-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 30"
for name in engine edge; do
  openssl req -x509 $key -subj /CN=localhost -addext "subjectAltName=DNS:localhost,IP:127.0.0.1" \
    -keyout "$folder/$name.key" -out "$folder/$name.crt" 2> /dev/null
done
sloserve serve "${1:-builtin:tiny}" --policy edf --http3 --ssl-certfile "$folder/engine.crt" --ssl-keyfile "$folder/engine.key" \
  --ssl-ca-certs "$folder/edge.crt" --ssl-cert-reqs 2 &
trap 'kill $!; rm -r "$folder"' EXIT
sloserve edge --upstream https://localhost:8000 --ca "$folder/engine.crt" --certfile "$folder/edge.crt" \
  --keyfile "$folder/edge.key" --port 8080
