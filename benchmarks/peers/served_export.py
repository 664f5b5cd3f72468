"""Exports that several clients ask at the same time, for benchmarks/triton.py.

The backends are Triton Inference Server, over HTTP, and the export itself,
called by a thread for each client in one process. A request has the "model",
the "rows" (the inputs of each call) and the number of "clients".
"""

import atexit
import concurrent.futures
import contextlib
import http.client
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import threading
import time

import side

EXAMPLE = pathlib.Path(__file__).parents[2] / "examples/triton/model.py"
PORT = 8123
SECONDS_TO_START = 300


def saved_model(setup):
    """Returns a function from a model and a row to the row's outputs."""
    import tensorflow as tf
    import tensorflow_text  # noqa: F401  (registers the tokenizer's operation)

    models = {
        name: tf.saved_model.load(folder)
        for name, folder in setup["models"].items()
    }

    def answer(name, row):
        signature = models[name].signatures["serving_default"]
        outputs = signature(**{key: tf.constant([x]) for key, x in row.items()})
        return {
            key: [
                item.decode() if isinstance(item, bytes) else item
                for item in value.numpy().ravel().tolist()
            ]
            for key, value in outputs.items()
        }

    return answer


def triton(setup):
    """The same, from a server that this process starts and ends."""
    start_server(setup["models"])
    connections = threading.local()

    def answer(name, row):
        if not hasattr(connections, "http"):
            connections.http = http.client.HTTPConnection("127.0.0.1", PORT)
        inputs = [
            {"name": key, "shape": [1, 1], "datatype": "BYTES", "data": [text]}
            for key, text in row.items()
        ]
        path, body = f"/v2/models/{name}/infer", json.dumps({"inputs": inputs})
        connections.http.request("POST", path, body)
        reply = json.loads(connections.http.getresponse().read())
        return {output["name"]: output["data"] for output in reply["outputs"]}

    return answer


def start_server(models):
    """Starts Triton with a repository of models; waits until it is ready."""
    import pytriton

    server = pathlib.Path(pytriton.__file__).parent / "tritonserver"
    folder = pathlib.Path(tempfile.mkdtemp())
    shutil.copytree(server / "backends", folder / "backends")
    version = ".".join(map(str, sys.version_info[:2]))
    stub = f"python_backend_stubs/{version}/triton_python_backend_stub"
    shutil.copy(server / stub, folder / "backends" / "python")
    for name, export in models.items():
        target = folder / "models" / name / "1"
        shutil.copytree(export, target / "saved_model")
        shutil.copy(EXAMPLE, target)
    environment = pathlib.Path(sys.executable).parent
    process = subprocess.Popen(
        [
            server / "bin" / "tritonserver",
            f"--model-repository={folder / 'models'}",
            f"--backend-directory={folder / 'backends'}",
            "--http-address=127.0.0.1",
            f"--http-port={PORT}",
            "--allow-grpc=false",
            "--allow-metrics=false",
        ],
        env={
            **os.environ,
            "PATH": f"{environment}:{os.environ['PATH']}",
            "VIRTUAL_ENV": str(environment.parent),
            "LD_LIBRARY_PATH": str(server.parents[1] / "nvidia_pytriton.libs"),
        },
    )
    atexit.register(shutil.rmtree, folder)
    atexit.register(process.wait)
    atexit.register(process.terminate)
    deadline = time.monotonic() + SECONDS_TO_START
    while not is_ready():
        if process.poll() is not None or time.monotonic() > deadline:
            raise SystemExit("error: Triton does not start; see its log above")
        time.sleep(0.5)


def is_ready():
    connection = http.client.HTTPConnection("127.0.0.1", PORT)
    with contextlib.suppress(OSError), contextlib.closing(connection):
        connection.request("GET", "/v2/health/ready")
        return connection.getresponse().status == 200
    return False


def asked(answer, request):
    """Answers the rows, as many at the same time as there are clients."""

    def timed(row):
        start = time.perf_counter()
        outputs = answer(request["model"], row)
        return time.perf_counter() - start, outputs

    clients = concurrent.futures.ThreadPoolExecutor(request["clients"])
    with clients:
        start, cpu_start = time.perf_counter(), time.process_time()
        replies = list(clients.map(timed, request["rows"]))
        seconds = time.perf_counter() - start
    ordered = sorted(latency for latency, _ in replies)
    return {
        "times": 1,
        "seconds": seconds,
        # Without the server's processes.
        "cpu_seconds": time.process_time() - cpu_start,
        "median_seconds": ordered[len(ordered) // 2],
        "p90_seconds": ordered[-(len(ordered) // 10) - 1],
        "outputs": [outputs for _, outputs in replies],
    }


BACKENDS = {"saved_model": saved_model, "triton": triton}
PACKAGES = {
    "saved_model": ["tensorflow", "tensorflow-text"],
    "triton": ["nvidia-pytriton"],
}


def start(setup):
    answer = BACKENDS[setup["backend"]](setup)

    def reply(request):
        found = asked(answer, request)
        if not request["with_outputs"]:
            del found["outputs"]
        return found

    return reply


if __name__ == "__main__":
    side.serve(start, PACKAGES[json.loads(sys.argv[1])["backend"]])
