"""Who is compared: how each contender is installed, found, set and launched."""

import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WORKER = Path(__file__).with_name("worker.py")
PEERS = ROOT / "build" / "peers"

# What `--setup` installs, one environment each: two MPIs in one environment hide each other.
PACKAGES = {
    "mpich": ["numpy", "mpi4py", "mpich"],
    "openmpi": ["numpy", "mpi4py", "openmpi"],
    "impi": ["numpy", "mpi4py", "impi-rt"],
    "gloo": ["numpy", "torch==2.13.0"],
}
MPIS = ("mpich", "openmpi", "impi")

# Environment variables of each setting, and for Open MPI's MCA parameters the same through
# OMPI_MCA_*. "default" is always measured; the others with --tuned. VERSUS_CALLS is read by worker.py.
SETTINGS = {
    "strata": {                     # --bind adds strata-run's --bind where every die has a CPU
        "default": {},
        "bind": {"VERSUS_CALLS": "bound"},      # persistent operations
    },
    "mpich": {
        "default": {},
        "no-cma": {"MPIR_CVAR_CH4_CMA_ENABLE": "0"},
        "yield-soon": {"MPIR_CVAR_POLLS_BEFORE_YIELD": "1", "MPIR_CVAR_POSIX_POLL_FREQUENCY": "1"},
        "persistent": {"VERSUS_CALLS": "bound"},
    },
    "openmpi": {
        "default": {},
        "no-cma": {"OMPI_MCA_smsc": "^cma"},
        "no-han": {"OMPI_MCA_coll": "^han"},
        "persistent": {"VERSUS_CALLS": "bound"},
    },
    "impi": {
        "default": {},
        "shm": {"I_MPI_FABRICS": "shm"},
        "yield-unpinned": {"I_MPI_FABRICS": "shm", "I_MPI_THREAD_YIELD": "2", "I_MPI_PIN": "0"},
        # Its persistent operations (2021.18) gather wrong elements and end ranks.
    },
    "gloo": {"default": {}},
}


@dataclass
class Contender:
    """A library under one setting."""

    library: str
    setting: str = "default"
    env: dict = field(default_factory=dict)
    about: str = ""         # version, as its ranks say it
    bind: bool = False      # strata alone: one CPU per die, as Open MPI and Intel MPI do by themselves

    @property
    def name(self):
        return self.library if self.setting == "default" else f"{self.library}:{self.setting}"

    @property
    def home(self):
        return PEERS / self.library

    def why_not(self):
        """None if this contender can run here, else what is missing."""
        if self.library == "strata":
            probe = subprocess.run([sys.executable, "-c", "import strata; strata.init, strata.world"],
                                   cwd=ROOT, capture_output=True, text=True)
            return None if probe.returncode == 0 else "strata does not import: " + (
                probe.stderr.strip().splitlines() or ["no reason given"])[-1]
        if not (self.home / "bin" / "python").exists():
            return "not installed (bench/versus.py --setup)"
        if self.library in MPIS and not (self.home / "bin" / "mpiexec").exists():
            return "its environment has no mpiexec (bench/versus.py --setup)"
        return None

    def command(self, n, rank, socket_name):
        """argv of its launcher; of one rank where it has none (gloo)."""
        worker = [str(WORKER), {"strata": "strata", "gloo": "gloo"}.get(self.library, "mpi"), socket_name]
        if self.library == "strata":
            bind = ["--bind"] if self.bind and n <= len(os.sched_getaffinity(0)) else []
            return [sys.executable, "-m", "strata.launch", "-n", str(n), *bind, *worker]
        python = str(self.home / "bin" / "python")
        if self.library == "gloo":
            return [python, *worker]
        extra = []
        if self.library == "openmpi":       # refuses root and more ranks than cores unless told
            extra = ["--oversubscribe"] + (["--allow-run-as-root"] if os.geteuid() == 0 else [])
        return [str(self.home / "bin" / "mpiexec"), *extra, "-n", str(n), python, *worker]

    def environment(self, n, rank, port):
        env = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", **self.env}
        if self.library == "strata":
            env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), env.get("PYTHONPATH")]))
        else:
            env["PATH"] = f"{self.home / 'bin'}{os.pathsep}{env['PATH']}"
        if self.library == "gloo":
            env.update(RANK=str(rank), WORLD_SIZE=str(n), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        return env


def roster(libraries, tuned):
    """Contenders for the libraries named, with all their settings when `tuned`."""
    return [Contender(lib, setting, env) for lib in libraries
            for setting, env in SETTINGS[lib].items() if tuned or setting == "default"]


def setup(libraries):
    """Make one virtual environment per peer. Returns the peers that could not be installed."""
    failed = []
    for lib in libraries:
        home = PEERS / lib
        print(f"{lib}: {' '.join(PACKAGES[lib])} -> {home}", flush=True)
        steps = [[sys.executable, "-m", "venv", str(home)],
                 [str(home / "bin" / "python"), "-m", "pip", "install", "-q", *PACKAGES[lib]]]
        if any(subprocess.run(step).returncode for step in steps):
            failed.append(lib)
    return failed
