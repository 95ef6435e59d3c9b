"""Build of the C core.  Everything else about the package is in pyproject.toml.

Each ``strata/_core/<name>.pyx`` becomes the extension ``strata._core.<name>``.
Two variables change the build, and a change of either rebuilds everything:

STRATA_SANITIZE=thread|address   adds the sanitizer (run with its library preloaded)
STRATA_DEBUG=1                   assertions, bounds checks, no optimisation
"""

import os
import sys
from pathlib import Path

import setuptools
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
CORE = Path("strata/_core")

if int(setuptools.__version__.split(".")[0]) < 77:
    sys.exit(
        f"strata needs setuptools 77 or later to build, and this is {setuptools.__version__}: "
        "pip install -U 'setuptools>=77'"
    )

# One language for the whole core.  boundscheck and wraparound are off because
# what comes from shared memory is checked explicitly, once, before it is used.
DIRECTIVES = {
    "language_level": "3",
    "binding": True,
    "boundscheck": False,
    "wraparound": False,
    "initializedcheck": False,
    "cdivision": True,
    "legacy_implicit_noexcept": False,
}

# No -march: one wheel serves every machine, and hot kernels dispatch at run
# time.  No contraction: a*b+c must round alike on every die and machine.
CFLAGS = [
    "-std=gnu11",
    "-O3",
    "-g1",
    "-pthread",
    "-fvisibility=hidden",
    "-ffp-contract=off",
    "-Wall",
    "-Wextra",
    # What Cython generates and nobody here can change.
    "-Wno-unused-parameter",
    "-Wno-unused-function",
    "-Wno-missing-field-initializers",
    "-Wno-sign-compare",
    "-Wno-cast-function-type",
]
LDFLAGS = ["-pthread"]
SANITIZERS = {
    "thread": ["-fsanitize=thread"],
    "address": ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"],
}


def flags():
    """Compiler flags, linker flags and Cython directives of this build."""
    cflags, ldflags, directives = list(CFLAGS), list(LDFLAGS), dict(DIRECTIVES)
    debug = os.environ.get("STRATA_DEBUG", "0")
    if debug not in ("", "0", "1"):
        sys.exit(f"STRATA_DEBUG={debug!r}: allowed are 0 and 1")
    if debug == "1":
        cflags += ["-O0", "-g3", "-UNDEBUG", "-DST_DEBUG=1"]
        directives |= {"boundscheck": True, "wraparound": False, "initializedcheck": True}
    sanitize = os.environ.get("STRATA_SANITIZE", "")
    if sanitize:
        if sanitize not in SANITIZERS:
            sys.exit(f"STRATA_SANITIZE={sanitize!r}: allowed are {', '.join(SANITIZERS)}")
        cflags += SANITIZERS[sanitize] + ["-g", "-fno-omit-frame-pointer"]
        ldflags += SANITIZERS[sanitize]
    return cflags, ldflags, directives


def stamp(text):
    """A file whose time changes only when the flags do; True when it did."""
    path = ROOT / "build" / "flags.txt"
    if path.exists() and path.read_text() == text:
        return path, False
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path, True


def extensions():
    """One extension for each .pyx of the core; Build turns them into C."""
    headers = sorted(map(str, [*CORE.glob("include/*.h"), *CORE.glob("*.pxd")]))
    return [
        Extension(
            f"strata._core.{source.stem}",
            [str(source)],
            include_dirs=[str(CORE / "include")],
            depends=headers,
            define_macros=[("NPY_NO_DEPRECATED_API", "NPY_1_7_API_VERSION"), ("_GNU_SOURCE", "1")],
        )
        for source in sorted(CORE.glob("*.pyx"))
    ]


class Build(build_ext):
    """Translates the core, then compiles its modules side by side."""

    def finalize_options(self):
        super().finalize_options()
        if self.parallel is None:
            self.parallel = min(4, len(os.sched_getaffinity(0)))

    def run(self):
        if self.extensions:
            self.translate()
        super().run()

    def translate(self):
        """Cython to C, and the flags that only a real build needs to know."""
        import numpy
        from Cython.Build import cythonize
        from Cython.Compiler.Version import version as cython_version

        cflags, ldflags, directives = flags()
        path, changed = stamp(
            f"{cflags}\n{ldflags}\n{sorted(directives.items())}\n"
            f"cython {cython_version} numpy {numpy.__version__} python {sys.version}\n"
        )
        for module in self.extensions:
            module.include_dirs.append(numpy.get_include())
            module.depends.append(str(path.relative_to(ROOT)))
            module.extra_compile_args = cflags
            module.extra_link_args = ldflags
        translated = cythonize(
            self.extensions, compiler_directives=directives, force=changed or self.force
        )
        for module, new in zip(self.extensions, translated, strict=True):
            module.sources = new.sources


os.chdir(ROOT)
setup(ext_modules=extensions(), cmdclass={"build_ext": Build})
