#!/usr/bin/env bash
# judges.sh PROGRAM SOURCES: a run with three sinks, received by Prometheus from Debian, and by MLflow and OpenTelemetry's
# messages from PyPI. Each must have what the metrics file has. Exits with 77 where one of them cannot be had.
set -euo pipefail
program=$1 sources=$2
cache=${XDG_CACHE_HOME:-$HOME/.cache}/tessera/sinks
mkdir -p "$cache"

skip() { echo "skipped: $1"; exit 77; }

python=${TESSERA_SINKS_PYTHON:-$cache/venv/bin/python}
if ! "$python" -c 'import mlflow, opentelemetry.proto' 2>/dev/null; then
  python3 -m venv "$cache/venv" || skip "python3 has no venv"
  "$cache/venv/bin/pip" install -q mlflow opentelemetry-proto || skip "PyPI's mlflow and opentelemetry-proto"
  python=$cache/venv/bin/python
fi

prometheus=$(command -v prometheus || true)
if [[ -z $prometheus ]]; then
  prometheus=$cache/usr/bin/prometheus
  if [[ ! -x $prometheus ]]; then
    (cd "$cache" && apt-get download -q prometheus && dpkg-deb -x prometheus_*.deb .) || skip "Debian's prometheus"
  fi
fi

exec "$python" "$sources/tests/sinks/judges.py" "$program" "$prometheus"
