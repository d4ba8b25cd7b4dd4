#!/bin/bash
# The first run on a GPU in a few calls, each shorter than ten minutes, on a machine that may lack packages and network:
#   bash benchmarks/gpu_pack/go.sh first|again|second|third|fourth|vllm-tests|train     in the repository's root
#   bash benchmarks/gpu_pack/go.sh cpu-check                                     all of it without a GPU, in small
# Figures and errors go to $OUT. Packages that the machine lacks come from $PACK/site.tar.xz, an archive of a folder
# that `pip install --target` made; it is unpacked once, into $SITE. $PACK may have a sitecustomize.py, too. $BROWSER
# is a folder with chromium-headless-shell and, in site/, Playwright, where the machine has neither. Chromium needs at
# least one font there: /usr/share/fonts with a file in it will do.
cd "$(dirname "$0")/../.." || exit 1
set -o pipefail
export GO_BEGAN=$(date +%s)
here=benchmarks/gpu_pack OUT=${OUT:-/tmp/out} SITE=${SITE:-/tmp/site} PACK=$(realpath -m "${PACK:-.gpu/pack}")
mkdir -p "$OUT"
if [ -e "$PACK/site.tar.xz" ] && [ ! -e "$SITE/.whole" ]; then
  rm -rf "$SITE"; mkdir -p "$SITE"
  xz -dc -T0 "$PACK/site.tar.xz" | tar xf - -C "$SITE" || exit 1
  touch "$SITE/.whole"
fi
python=${PYTHON:-python3}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export PYTHONPATH="$PACK:$SITE:$PWD" PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
export HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false
export VLLM_USE_DEEP_GEMM=0 VLLM_LOGGING_LEVEL=INFO VLLM_CACHE_ROOT="$SITE/../vllm-cache"
[ "$1" = cpu-check ] || nvidia-smi --query-gpu=name,memory.total,memory.used,driver_version --format=csv,noheader
tests() { timeout "$1" $python -m pytest -q -p no:cacheprovider -m gpu -k "$2" tests/samplers/test_gpu.py 2>&1 | tail -25 || status=$?; }
extra() { timeout "$1" $python $here/extra.py "$work" 2>"$OUT/extra.err" | tee -a "$OUT/gpu.jsonl" || status=$?; }
stages() { $python $here/stages.py "$OUT" "$@" || status=$?; }
status=0
case $1 in
first) # what needs no vLLM
  tests 150 "float or joined or leave_only"
  extra 120
  stages ceilings model loss attention trainer ;;
again) # the trainer alone, if it was cut off
  stages ceilings model trainer ;;
second) # the engine beside the trainer
  $python - <<'CHECK' || exit 1
import torch
import vllm
import vllm.device_allocator.cumem as cumem
import vllm.vllm_flash_attn.flash_attn_interface as flash
from vllm.platforms import current_platform as platform
print(vllm.__version__, torch.__version__, type(platform).__name__, platform.get_device_capability())
print("FA3", flash.FA3_AVAILABLE, flash.FA3_UNAVAILABLE_REASON, "cumem", cumem.cumem_available)
CHECK
  stages model sampler ;;
third)
  stages model throughput ;;
fourth) # the parts of a training step
  stages model step ;;
vllm-tests)
  tests 400 "agree or sleep" ;;
train) # the whole loop in generated shops: tiny, two steps, Chromium, vLLM in process
  if [ -n "${BROWSER:-}" ]; then
    export PYTHONPATH="$BROWSER/site:$PYTHONPATH" MINIRL_CHROMIUM="$BROWSER/chromium-headless-shell"
  fi
  timeout 560 $python train.py tiny --steps 2 --eval.episodes 16 --name "$work/tiny" 2>"$OUT/train.err" | tee "$OUT/train.log" || status=$?
  cat "$work/tiny/metrics.jsonl" | tee "$OUT/metrics.jsonl" ;;
cpu-check)
  extra 300
  stages cpu ceilings model loss attention trainer ;;
*) echo "go.sh: what?" >&2; exit 2 ;;
esac
find "$OUT" -maxdepth 1 -size 0 -delete
exit $status
