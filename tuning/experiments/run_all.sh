#!/usr/bin/env bash
# Every experiment of tuning/README.md in turn, on an idle machine. Records go to benches/record/<machine>/<date>.
# Arguments are passed on to each, e.g. --quick or --cores 1.
# FEATURES=openblas adds OpenBLAS as a second general matrix multiplication (Debian: libopenblas-dev).
set -euo pipefail
cd "$(dirname "$0")/../.."
cargo build --release --quiet --package gatestream-experiments --bins ${FEATURES:+--features "$FEATURES"}
bin=${CARGO_TARGET_DIR:-target}/release
run() {
  local start=$SECONDS
  printf '\n== %s\n' "$*"
  "$bin/$1" "${@:2}"
  printf '== %s took %s s\n' "$1" $((SECONDS - start))
}
for experiment in fig3a fig3b fig3c fig4a fig5 serpentine precisions one_core concurrency tuned_vs_estimate search_space prepare; do
  run "$experiment" "$@"
done
# The cache simulation needs valgrind. Twice: this machine's private cache, and one of 2 MiB.
run fig4b "$@"
run fig4b --private 2048 "$@"
