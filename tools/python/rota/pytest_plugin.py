"""Tells `rota ci` and `rota run --report` which test ran when, and what it took of the GPU; asks for the GPUs of a worker.

pytest loads it by its entry point, in every session. Without ROTA_REPORT, the folder of the report, it does nothing; with
it, rota.recorder does the work.
"""
import os

if os.environ.get("ROTA_REPORT") and os.environ.get("PYTEST_XDIST_WORKER"):
    # Before any conftest.py is read. The process that starts the workers may have a GPU itself, which is not theirs.
    from rota import gpus

    gpus.choose(own=True)


def pytest_configure(config):
    if not os.environ.get("ROTA_REPORT"):
        return
    from rota import gpus, recorder

    if config.getoption("dist", "no") == "no":  # tests run in this process, not in workers that it starts
        gpus.choose(own=False)
    recorder.start(config)
