#!/usr/bin/env bash
# Compares the newest release of vLLM with one that has a profile: what of the auxiliary-output protocol changed?
#
#   drift.sh KNOWN [NEWEST]      versions such as 0.32.0; NEWEST defaults to the newest on the package index
#
# Needs `auxout` on the PATH (pip install 'auxout[conformance,torch]': the worker needs torch) and pip. Writes drift.txt
# and drift.json into $AUXOUT_OUT (default: the current folder). $AUXOUT_SUITE names the suite that is played.
# Exit codes are those of `auxout drift`: 0 no drift, or no newer release; 1 drift, 2 not usable, 3 does not run,
# 4 not everything was compared.
set -euo pipefail

known=${1:?usage: drift.sh KNOWN [NEWEST]}
newest=${2:-$(pip index versions vllm --disable-pip-version-check | sed -n '1s/.*(\(.*\)).*/\1/p')}
out=${AUXOUT_OUT:-.}

if [ -z "$newest" ]; then
    echo "drift.sh: pip names no version of vllm" >&2
    exit 2
fi
if [ "$newest" = "$known" ]; then
    echo "vllm==$known is the newest release" | tee "$out/drift.txt"
    exit 0
fi

code=0
auxout drift "vllm==$known" "vllm==$newest" --suite "${AUXOUT_SUITE:-smoke}" --json "$out/drift.json" \
    >"$out/drift.txt" || code=$?
tail -n 1 "$out/drift.txt"
exit "$code"
