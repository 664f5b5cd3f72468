"""The report of `bert-tf env`, also on broken machines."""

import os
import subprocess
import sys

import pytest
from checkout import ROOT

from bert_tf import environment
from bert_tf.version import __version__


def lines_of(path, **variables):
    """Runs `bert-tf env` with modules of a folder before the installed ones."""
    kept = {k: v for k, v in os.environ.items() if k[:5] != "KERAS"}
    done = subprocess.run(
        [sys.executable, "-m", "bert_tf", "env"],
        env={**kept, "PYTHONPATH": f"{path}{os.pathsep}{ROOT}", **variables},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


@pytest.fixture
def without_frameworks(monkeypatch):
    """Leaves out the imports, which take seconds."""
    monkeypatch.setattr(environment, "_PROBES", {})


def write(folder, **modules):
    for name, text in modules.items():
        (folder / f"{name}.py").write_text(text, encoding="utf-8")


def test_the_report_names_what_matters(without_frameworks, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--a=1\n--b=2")
    for name in ("HF_TOKEN", "TF_VAR_password", "TF_TOKEN_a", "TPU_API_KEY"):
        monkeypatch.setenv(name, "secret")
    monkeypatch.setenv("BERT_TF_MODELS_URL", "https://me:secret@host/models")
    text = "\n".join(environment.report())
    assert f"bert_tf {__version__} in " in text
    for start in ("Python 3.", "CPU: ", "Memory: ", "Keras backend: "):
        assert f"\n{start}" in text
    assert "numpy 2." in text
    assert "\n  XLA_FLAGS=--a=1 --b=2" in text
    assert "\n  BERT_TF_MODELS_URL=https://...@host/models" in text
    assert "secret" not in text


def test_broken_frameworks_are_one_line_each(tmp_path):
    write(
        tmp_path,
        tensorflow="import os, signal\nos.kill(os.getpid(), signal.SIGILL)\n",
        jax="import sys\nprint('no CUDA', file=sys.stderr)\nsys.exit(3)",
        torch="class cuda:\n    device_count = int\n",
    )
    lines = lines_of(tmp_path, TF_ENABLE_ONEDNN_OPTS="0")
    for line in (
        "tensorflow: the import was killed by SIGILL.",
        "jax: the import failed: no CUDA",
        "torch: CPU",
        "  TF_ENABLE_ONEDNN_OPTS=0",
    ):
        assert line in lines


def test_a_broken_tensorflow_text_leaves_the_devices(tmp_path, monkeypatch):
    write(
        tmp_path,
        tensorflow="class device:\n    device_type = 'GPU'\n"
        "class config:\n    class experimental:\n"
        "        get_device_details = lambda device: {'device_name': 'H200'}\n"
        "    list_physical_devices = lambda: [device]\n",
        tensorflow_text="raise ImportError('undefined symbol: _ZN10')",
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    answer = environment._answer(environment._start_probe("tensorflow"))
    assert answer == (
        "GPU H200; the import failed: ImportError: undefined symbol: _ZN10"
    )


def test_an_import_that_hangs_is_stopped(tmp_path, monkeypatch):
    write(tmp_path, torch="import time\ntime.sleep(60)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(environment, "_SECONDS", 0.5)
    probe = environment._start_probe("torch")
    assert environment._answer(probe) == "the import did not end within 0 s"
    assert probe.returncode is not None


def test_the_devices_of_tensorflow(monkeypatch):
    monkeypatch.delenv("PYTHONPATH", raising=False)
    pytest.importorskip("tensorflow")
    answer = environment._answer(environment._start_probe("tensorflow"))
    assert answer.startswith("CPU")


SMI = """#!/bin/sh
echo "NVIDIA H200, 143771 MiB, 143000 MiB, 580.159.04, 9.0"
echo "Tesla V100-SXM2-16GB, 16384 MiB, 16000 MiB, 535.1, 7.0"
echo "GRID, [N/A]"
"""


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        (
            SMI,
            [
                "NVIDIA GPU: NVIDIA H200, 143771 MiB (143000 MiB free), driver "
                "580.159.04, compute capability 9.0: bfloat16, float16, "
                "float32",
                "NVIDIA GPU: Tesla V100-SXM2-16GB, 16384 MiB (16000 MiB free), "
                "driver 535.1, compute capability 7.0: float16, float32",
                "NVIDIA GPU: GRID, [N/A]",
            ],
        ),
        (
            "#!/bin/sh\necho Driver mismatch\nexit 9\n",
            ["NVIDIA GPU: nvidia-smi failed: Driver mismatch"],
        ),
        ("#!/bin/sh\n", ["NVIDIA GPU: nvidia-smi failed: no output"]),
        (
            None,
            ["NVIDIA GPU: none found (there is no program nvidia-smi)"],
        ),
    ],
)
def test_gpus_are_described(tmp_path, monkeypatch, program, expected):
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/bin")
    monkeypatch.setattr(environment.shutil, "which", lambda name: None)
    if program:
        path = tmp_path / "nvidia-smi"
        path.write_text(program)
        path.chmod(0o755)
        monkeypatch.setattr(environment.shutil, "which", lambda name: str(path))
    assert [*environment.gpus()] == expected


@pytest.mark.parametrize(
    ("capability", "expected"),
    [
        ("8.0", "bfloat16, float16, float32"),
        ("12.0", "bfloat16, float16, float32"),
        ("7.5", "float16, float32"),
        ("6.1", "float32"),
        ("[N/A]", "unknown precisions"),
    ],
)
def test_precisions_follow_the_compute_capability(capability, expected):
    assert environment.precisions(capability) == expected


def test_the_keras_backend_is_the_one_that_keras_takes(tmp_path):
    """The variable first, then keras.json, then the default."""
    place = {"KERAS_HOME": str(tmp_path)}
    assert environment.keras_backend(place) == "tensorflow (default)"
    path = tmp_path / "keras.json"
    path.write_text('{"backend": "no_such_package"}')
    missing = "no_such_package is not installed"
    assert environment.keras_backend(place) == (
        f"no_such_package ({path}); {missing}"
    )
    assert environment.keras_backend(
        {**place, "KERAS_BACKEND": "tensorflow"}
    ) == ("tensorflow (KERAS_BACKEND)")
    for damaged in ("{", "[]", '"a"'):
        path.write_text(damaged)
        assert environment.keras_backend(place) == (
            f"tensorflow (default, since {path} is not valid JSON)"
        )


def test_processors_of_both_kinds(tmp_path):
    path = tmp_path / "cpuinfo"
    path.write_text("model name\t: Xeon\nflags\t\t: fpu avx2 amx_bf16 avx\n")
    name, _, instructions = environment.processor(str(path)).partition("; ")
    assert name.startswith("Xeon, ")
    assert instructions == "avx avx2 amx_bf16"
    path.write_text("Features\t: fp asimd bf16\n")
    assert environment.processor(str(path)).endswith("; asimd bf16")
    absent = environment.processor(str(tmp_path / "absent"))
    assert absent.endswith("; unknown instructions")
