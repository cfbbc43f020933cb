"""judges.py PROGRAM PROMETHEUS: see judges.sh."""
import http.server
import json
import math
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
import urllib.request

from google.protobuf import json_format
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

program, prometheus = map(os.path.abspath, sys.argv[1:3])
STEPS = 60

KINDS = {"/v1/metrics": ExportMetricsServiceRequest, "/v1/traces": ExportTraceServiceRequest,
         "/v1/logs": ExportLogsServiceRequest}


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def wait_for(url, seconds):
    end = time.time() + seconds
    while time.time() < end:
        try:
            return urllib.request.urlopen(url, timeout=2).read()
        except OSError:
            time.sleep(0.3)
    raise SystemExit(f"{url} does not answer")


class Collector(http.server.BaseHTTPRequestHandler):
    """Takes what the published messages can be parsed from, without unknown members."""
    taken = {path: [] for path in KINDS}
    problems = []

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        try:
            parsed = json.loads(body)
            hex_ids(parsed)
            self.taken[self.path].append(json_format.ParseDict(parsed, KINDS[self.path]()))
            code = 200
        except Exception as error:  # noqa: BLE001: any is the finding
            self.problems.append(f"{self.path}: {error}")
            code = 400
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_):
        pass


def hex_ids(value):
    """OTLP's JSON has ids in hexadecimal digits, Protocol Buffers' JSON in base64."""
    import base64
    if isinstance(value, dict):
        for key, member in value.items():
            if key in ("traceId", "spanId", "parentSpanId"):
                value[key] = base64.b64encode(bytes.fromhex(member)).decode()
            else:
                hex_ids(member)
    elif isinstance(value, list):
        for member in value:
            hex_ids(member)


def close(a, b):
    return a == b or (math.isnan(a) and math.isnan(b))


def main():
    folder = pathlib.Path(tempfile.mkdtemp(prefix="tessera_sinks_"))
    os.chdir(folder)
    (folder / "text.txt").write_text("The quick brown fox jumps over the lazy dog. " * 400)
    page, store, flow = free_port(), free_port(), free_port()
    children = []
    collector = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Collector)
    threading.Thread(target=collector.serve_forever, daemon=True).start()
    try:
        (folder / "prometheus.yml").write_text(f"""
scrape_configs:
  - job_name: tessera
    scrape_interval: 100ms
    scrape_timeout: 100ms
    static_configs: [{{targets: ["127.0.0.1:{page}"]}}]
""")
        children.append(subprocess.Popen(
            [prometheus, "--config.file=prometheus.yml", "--storage.tsdb.path=data",
             f"--web.listen-address=127.0.0.1:{store}", "--log.level=error"]))
        children.append(subprocess.Popen(
            [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(flow),
             "--workers", "1", "--backend-store-uri", f"sqlite:///{folder}/mlflow.db"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
            env=os.environ | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}))
        wait_for(f"http://127.0.0.1:{store}/-/ready", 30)
        wait_for(f"http://127.0.0.1:{flow}/health", 120)
        (folder / "run.toml").write_text(f"""
[model]
dim = 64
layers = 4
heads = 4
[data]
text = ["text.txt"]
tokenizer = "bytes"
seq_len = 64
[train]
steps = {STEPS}
batch = 8
[checkpoint]
folder = "checkpoints"
every = 20
[[sinks]]
sink = "prometheus"
options = {{ port = {page} }}
[[sinks]]
sink = "mlflow"
options = {{ url = "http://127.0.0.1:{flow}" }}
[[sinks]]
sink = "otlp"
options = {{ url = "http://127.0.0.1:{collector.server_address[1]}" }}
""")
        for steps in (40, STEPS):  # the second one continues the first
            done = subprocess.run([program, "train", "run.toml", f"train.steps={steps}"],
                                  capture_output=True, text=True)
            print(done.stdout[-600:], done.stderr, sep="")
            if done.returncode != 0 or "were lost" in done.stderr:
                raise SystemExit(f"the run has failed ({done.returncode})")
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        losses = {line["step"]: line["loss"] for line in lines}
        assert len(losses) == STEPS
        judge_mlflow(flow, losses)
        judge_otlp(losses)
        judge_prometheus(store, losses)
    finally:
        for child in children:
            child.send_signal(signal.SIGTERM)
        for child in children:
            try:
                child.wait(10)
            except subprocess.TimeoutExpired:
                child.kill()
        try:
            os.killpg(children[-1].pid, signal.SIGKILL)  # what MLflow's server has started
        except (IndexError, ProcessLookupError, PermissionError):
            pass
        collector.shutdown()
        subprocess.run(["rm", "-rf", str(folder)], check=False)


def judge_mlflow(port, losses):
    from mlflow.tracking import MlflowClient
    client = MlflowClient(f"http://127.0.0.1:{port}")
    experiment = client.get_experiment_by_name("tessera")
    runs = client.search_runs([experiment.experiment_id])
    assert len(runs) == 1, runs
    run = runs[0]
    assert run.info.status == "FINISHED", run.info
    assert run.data.params["train.batch"] == "8", run.data.params
    assert run.data.params["sinks.0.sink"] == "prometheus"
    history = {m.step: m.value for m in client.get_metric_history(run.info.run_id, "loss")}
    assert set(history) == set(losses), (len(history), len(losses))
    assert all(close(history[step], losses[step]) for step in losses)
    print(f"mlflow: {len(history)} steps of one run, continued once, with {len(run.data.params)} parameters")


def judge_otlp(losses):
    assert not Collector.problems, Collector.problems
    values = []
    for request in Collector.taken["/v1/metrics"]:
        for scope in request.resource_metrics[0].scope_metrics:
            for metric in scope.metrics:
                if metric.name == "tessera.loss":
                    values += [point.as_double for point in metric.gauge.data_points]
    assert sorted(values) == sorted(losses.values()), (len(values), len(losses))
    names = [span.name for request in Collector.taken["/v1/traces"]
             for span in request.resource_spans[0].scope_spans[0].spans]
    assert names.count("step") == len(losses) and names.count("run") == 2, names
    texts = [record.body.string_value for request in Collector.taken["/v1/logs"]
             for record in request.resource_logs[0].scope_logs[0].log_records]
    assert texts.count("the run ends: done") == 2, texts
    print(f"otlp: {len(values)} points, {len(names)} spans, {len(texts)} log records")


def judge_prometheus(port, losses):
    query = urllib.parse.quote("tessera_loss[10m]")
    answer = json.loads(wait_for(f"http://127.0.0.1:{port}/api/v1/query?query={query}", 5))
    samples = {float(value) for series in answer["data"]["result"] for _, value in series["values"]}
    assert samples, answer
    # The page has fewer digits.
    others = [s for s in samples if not any(math.isclose(s, loss, rel_tol=1e-9) for loss in losses.values())]
    assert not others, others
    targets = json.loads(wait_for(f"http://127.0.0.1:{port}/api/v1/query?query=tessera_step", 5))
    print(f"prometheus: {len(samples)} different losses, all of them of the run;",
          len(targets["data"]["result"]), "series of tessera_step")


main()
